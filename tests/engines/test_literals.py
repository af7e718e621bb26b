"""Values spliced into SQL text come back from a real server as they went."""

import math
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncebox.core.outcomes import Reason
from oncebox.core.queries import Query
from oncebox.core.steps import Begin, Call
from oncebox.engines import postgresql
from oncebox.engines.queries import load
from oncebox.errors import MessageError
from oncebox.schema import migrate
from tests.servers import Postgres

# Everything that text can be: no surrogates, which are not text, and no NUL, which PostgreSQL can't hold.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200)
# What SQL and its escapes are made of, far more often than chance would.
nasty = st.text(st.sampled_from("'\"\\$;-/*%:{}()E\n\r\t\x01\x1b\x7fu0041nx\u2019\U0001f9fe"), max_size=60)
QUICK = settings(deadline=None, max_examples=150)


@pytest.fixture(scope="module", params=["on", "off"], ids=["standard strings", "escaping strings"])
def server(postgres: Postgres, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """With both meanings a backslash can have in a plain literal."""
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"SET standard_conforming_strings = {request.param}".encode())
        connection.execute("SET escape_string_warning = off")
        yield connection


def returned(server: psycopg.Connection[Any], value: Any, kind: str) -> Any:
    """`value` through the same text that flows send, several statements to a message."""
    query = Query("round_trip", f"SELECT 1; SELECT :value::{kind}", False)
    cursor = server.execute(postgresql.script((Call(query, {"value": value}),)).encode())
    cursor.nextset()
    row = cursor.fetchone()
    assert row is not None
    return row[0]


@QUICK
@given(text=texts | nasty)
@example(text="'; DROP TABLE ledger; --")
@example(text="\\'; DROP TABLE ledger; --")
@example(text="\\")
@example(text="\\x41\\u0041\\101")
@example(text="E'\\\\'")
@example(text="$$ $tag$ :value :consumer %s ? {p}")
def test_text_comes_back_as_it_went(server: psycopg.Connection[Any], text: str) -> None:
    assert returned(server, text, "text") == text


@QUICK
@given(body=st.binary(max_size=300))
@example(body=b"")
@example(body=bytes(range(256)))
@example(body=b"\\x41'\\\\")
def test_bytes_come_back_as_they_went(server: psycopg.Connection[Any], body: bytes) -> None:
    assert bytes(returned(server, body, "bytea")) == body


@QUICK
@given(values=st.lists(st.none() | texts | nasty, max_size=8))
@example(values=["NULL", None, "null", "", " ", "{", "}", ",", '"', "\\", '\\"', "'", Reason.UNKNOWN_TYPE])
def test_lists_of_text_come_back_as_they_went(
    server: psycopg.Connection[Any], values: list[str | None]
) -> None:
    assert returned(server, values, "text[]") == values


@QUICK
@given(values=st.lists(st.none() | st.binary(max_size=20), max_size=8))
def test_lists_of_bytes_and_nothing_come_back_as_they_went(
    server: psycopg.Connection[Any], values: list[bytes | None]
) -> None:
    assert [
        value if value is None else bytes(value) for value in returned(server, values, "bytea[]")
    ] == values


@QUICK
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8))
def test_lists_of_integers_come_back_as_they_went(server: psycopg.Connection[Any], values: list[int]) -> None:
    assert returned(server, values, "bigint[]") == values


@pytest.mark.parametrize(
    ("values", "kind"), [([True, False, None], "boolean[]"), ([0.5, -1e300, None], "float8[]")]
)
def test_lists_of_other_values_come_back_as_they_went(
    server: psycopg.Connection[Any], values: list[Any], kind: str
) -> None:
    assert returned(server, values, kind) == values


@QUICK
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back_as_they_went(server: psycopg.Connection[Any], value: float) -> None:
    assert returned(server, value, "float8") == value


@pytest.mark.parametrize(
    ("value", "kind"), [(None, "text"), (True, "boolean"), (False, "boolean"), (0, "integer"), (-1, "bigint")]
)
def test_plain_values_come_back_as_they_went(server: psycopg.Connection[Any], value: Any, kind: str) -> None:
    assert returned(server, value, kind) == value


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_number_is_a_number_and_no_column(server: psycopg.Connection[Any], value: float) -> None:
    try:
        assert returned(server, value, "float8") == value
    except TypeError:
        return  # refused before it is sent, which is as good


def test_a_word_of_an_enumeration_is_its_text(server: psycopg.Connection[Any]) -> None:
    assert returned(server, Reason.UNKNOWN_TYPE, "text") == "unknown type"


def test_nul_is_refused_before_it_is_sent() -> None:
    with pytest.raises(MessageError, match="NUL"):
        postgresql.literal("a\0b")


@pytest.mark.parametrize("value", [object(), {"a": 1}, 1j, [object()], [["nested"]]])
def test_what_has_no_literal_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="no SQL literal"):
        postgresql.literal(value)


@pytest.mark.parametrize(
    "text", ["plain", "it's", "back\\slash", "'; DROP TABLE x; --", "ünïcode ✓", "$1 %s {0}"]
)
def test_the_prepared_claim_says_what_literals_one_by_one_say(text: str) -> None:
    """Written out for speed, so what it writes is compared with the long way, parameter by parameter."""
    queries = load("postgresql", "oncebox")
    claim, claims = queries.claim, postgresql.Claims(queries)
    for state, lazy in ((0, False), (1, True), (2, False)):
        params = claim_of(text, state=state, lazy=lazy)
        values = ",".join(postgresql.literal(params[name]) for name in claim.names)
        assert claims.text(params) == f"EXECUTE {named(claims.prepare())}({values})"


def named(preparing: str) -> str:
    """What `PREPARE name AS …` names."""
    return preparing.split()[1]


def claim_of(text: str, **words: Any) -> dict[str, Any]:
    params = {
        "consumer": text, "source": f"from {text}", "message_id": f"id {text}", "type": f"type {text}",
        "fingerprint": bytes(range(32)), "state": 0, "lazy": False, "token": "0a1b.7.1",
    }  # fmt: skip
    return params | words


@pytest.mark.parametrize(
    "text", ["plain", "it's", "back\\slash", "'; DROP TABLE x; --", "ünïcode ✓", "$1 %s {0}", "a $3 :token b"]
)
@pytest.mark.parametrize("lazy", [False, True])
def test_the_claim_of_a_kind_writes_the_row_that_the_long_way_writes(
    pg_url: str, text: str, lazy: bool
) -> None:
    queries = load("postgresql", "oncebox")
    migrate(pg_url)
    rows = []
    with psycopg.connect(pg_url, autocommit=True) as connection:
        for claims in (postgresql.Claims(queries), None):
            step = Begin("0a1b.7.1", (Call(queries.claim, claim_of(text, lazy=lazy)),), carried=True)
            learning = postgresql.learn(step, claims)
            assert bool(learning) == (claims is not None)
            opening = postgresql.begin(step, claims)
            assert (claims is not None) == (bool(learning) and f"EXECUTE {named(learning)}(" in opening)
            assert postgresql.learn(step, claims) == ""
            connection.pgconn.exec_((learning + opening).encode())
            looked = connection.execute(
                "SELECT current_setting('oncebox.claim', true), consumer, source, message_id, type, fingerprint, "
                "state, lazy, seq, finished = received FROM oncebox.ledger"
            )
            rows += looked.fetchall()
            connection.pgconn.exec_(b"ROLLBACK")
    assert len(rows) == 2
    assert rows[0] == rows[1]


def test_a_session_has_claims_of_their_own_for_so_many_kinds_and_no_more() -> None:
    """Sources may be as many as customers; a session's memory is not theirs to fill."""
    claims = postgresql.Claims(load("postgresql", "oncebox"))
    learnt = [claims.learn(claim_of("x", source=f"tenant-{n}")) for n in range(postgresql.CLAIMS_MAX + 5)]
    assert all(learnt[: postgresql.CLAIMS_MAX])
    assert not any(learnt[postgresql.CLAIMS_MAX :])
    own = claims.text(claim_of("x", source="tenant-3"))
    assert own.startswith(f"EXECUTE {named(learnt[3])}('id x',")
    shared = claims.text(claim_of("x", source="tenant-35"))
    assert shared.startswith(f"EXECUTE {named(claims.prepare())}('x','tenant-35',")


def test_a_kind_that_may_not_have_been_prepared_is_learnt_again_under_another_name() -> None:
    claims = postgresql.Claims(load("postgresql", "oncebox"))
    one, other = claim_of("x"), claim_of("y")
    kept = claims.learn(one)
    lost = claims.learn(other)
    claims.doubt()
    assert named(claims.prepare()) in claims.text(other)
    assert named(kept) in claims.text(one)
    again = claims.learn(other)
    assert named(again) in claims.text(other)
    assert len({named(kept), named(lost), named(again), named(claims.prepare())}) == 4
    claims.latest = None  # as at every closing message: what was opened came through
    claims.doubt()
    assert named(again) in claims.text(other)


def test_a_nul_in_a_claim_is_refused_before_it_is_sent() -> None:
    queries = load("postgresql", "oncebox")
    with pytest.raises(MessageError, match="NUL"):
        postgresql.Claims(queries).text(claim_of("x", message_id="a\0b"))
