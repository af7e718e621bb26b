"""Results, headers, provenance and errors as they are stored, and as they come back."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox.codec import (
    decode_result,
    describe_error,
    encode_result,
    pack_headers,
    pack_provenance,
    storable,
    unpack_headers,
    unpack_provenance,
)
from oncebox.errors import OnceboxError, UsageError


@dataclass
class Entry:
    id: int


class Model(pydantic.BaseModel):
    at: datetime


@pytest.mark.parametrize(
    ("value", "read_back"),
    [
        ({"entry": 9001}, {"entry": 9001}),
        ([1, "é", None, True, 0.5], [1, "é", None, True, 0.5]),
        ("text\0", "text\0"),
        (2**100, 2**100),
        (Entry(7), {"id": 7}),
        ({"all": [Entry(7)]}, {"all": [{"id": 7}]}),
        (Model(at=datetime(2025, 1, 2, tzinfo=UTC)), {"at": "2025-01-02T00:00:00Z"}),
        ({"m": Model(at=datetime(2025, 1, 2, tzinfo=UTC))}, {"m": {"at": "2025-01-02T00:00:00Z"}}),
    ],
)
def test_a_result_reads_back_as_every_duplicate_will_read_it(value: Any, read_back: Any) -> None:
    assert decode_result(encode_result(value)) == read_back


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize(
    "value", [object(), {"a": object()}, lambda: 1, "\ud800", _cycle(), {"a": {b"\xff": 1, (1,): 2}}]
)
def test_a_result_without_a_json_form_is_a_clear_error(value: Any) -> None:
    with pytest.raises(UsageError, match=r"a result of type \w+ has no JSON form .*or nothing"):
        encode_result(value)


def test_a_result_row_that_was_harmed_is_a_clear_error() -> None:
    with pytest.raises(OnceboxError, match="a stored result is not JSON"):
        decode_result(b"{")


@given(st.lists(st.tuples(st.text(), st.binary())).map(tuple))
def test_headers_come_back_as_they_were(headers: tuple[tuple[str, bytes], ...]) -> None:
    try:
        "".join(name for name, _ in headers).encode()
    except UnicodeEncodeError:
        assert [value for _, value in unpack_headers(pack_headers(headers))] == [
            value for _, value in headers
        ]
    else:
        assert unpack_headers(pack_headers(headers)) == headers


def test_a_header_name_that_is_not_text_is_kept_readable() -> None:
    assert unpack_headers(pack_headers((("a\ud800", b"1"),))) == (("a\\ud800", b"1"),)


def test_text_in_a_header_comes_back_as_bytes() -> None:
    headers: Any = (("a", "text"),)
    assert unpack_headers(pack_headers(headers)) == (("a", b"text"),)


def test_an_empty_column_is_no_headers_and_no_provenance() -> None:
    assert unpack_headers(b"") == ()
    assert unpack_provenance("") == {}


values = (
    st.none()
    | st.integers()
    | st.text()
    | st.binary()
    | st.floats()
    | st.sets(st.integers())
    | st.builds(object)
)


@given(st.dictionaries(st.text(), values | st.lists(values)))
def test_provenance_is_always_storable_and_readable(provenance: dict[str, Any]) -> None:
    stored = pack_provenance(provenance)
    assert "\0" not in stored
    stored.encode()
    assert len(unpack_provenance(stored)) <= len(provenance)


def test_provenance_keeps_its_values() -> None:
    provenance = {"topic": "payments", "partition": 3, "offset": 1042, "nested": {"a": [1]}}
    assert unpack_provenance(pack_provenance(provenance)) == provenance


@given(st.text())
def test_storable_text_has_neither_nul_nor_surrogates(text: str) -> None:
    kept = storable(text)
    assert "\0" not in kept
    assert kept.encode().decode() == kept


def raised(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


class Local(Exception):
    pass


def test_an_error_is_described_by_type_message_and_frames() -> None:
    def fail() -> None:
        password = "s3cret"  # a local value
        raise Local(f"no luck, {len(password)}")

    described = describe_error(raised(fail))
    assert described.type == f"{__name__}.Local"
    assert described.message == "no luck, 6"
    assert "in fail\n    raise Local(" in described.traceback
    assert described.traceback.endswith(f"{__name__}.Local\n")
    assert "no luck, 6" not in described.traceback


def test_a_builtin_is_named_without_its_module() -> None:
    assert describe_error(raised(lambda: 1 / 0)).type == "ZeroDivisionError"


def test_causes_show_their_frames_but_not_their_messages() -> None:
    def inner() -> None:
        int("s3cret".lower())

    def outer() -> None:
        try:
            inner()
        except ValueError as error:
            raise Local("wrapped") from error

    described = describe_error(raised(outer))
    assert described.message == "wrapped"
    assert "in inner" in described.traceback
    assert described.traceback.index("ValueError\n") < described.traceback.index("in outer\n    raise Local")
    assert "invalid literal" not in "".join(described)


def test_a_suppressed_context_stays_hidden_and_a_cycle_ends() -> None:
    def outer() -> None:
        try:
            int("x")
        except ValueError:
            raise Local("alone") from None

    error = raised(outer)
    assert "ValueError" not in describe_error(error).traceback
    error.__cause__ = error
    assert describe_error(error).traceback.count("Traceback") == 1


def test_the_first_failure_of_a_group_is_shown() -> None:
    def outer() -> None:
        raise ExceptionGroup("several", [Local("s3cret"), Local()])

    traceback = describe_error(raised(outer)).traceback
    assert "Local\n" in traceback
    assert "ExceptionGroup\n" in traceback
    assert "s3cret" not in traceback.replace('Local("s3cret")', "")


def ping(level: int, cause: BaseException | None) -> None:
    if level == 0:
        raise Local("é" * 5000) from cause
    pong(level - 1, cause)


def pong(level: int, cause: BaseException | None) -> None:
    ping(level, cause)


def test_sizes_are_bounded_and_the_end_of_a_traceback_is_kept() -> None:
    error: BaseException | None = None
    for _ in range(20):
        cause = error
        error = raised(lambda cause=cause: ping(200, cause))  # type: ignore[misc]
    assert error is not None
    described = describe_error(error)
    assert described.message == "é" * 2000
    assert len(described.traceback.encode()) == pytest.approx(16 * 1024, abs=4)
    assert described.traceback.endswith(f'    raise Local("é" * 5000) from cause\n{__name__}.Local\n')


def test_text_that_no_database_takes_is_made_storable() -> None:
    described = describe_error(Local("a\0b\ud800c"))
    assert described.message == "ab?c"


def test_an_error_that_can_not_be_shown_is_described_all_the_same() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    described = describe_error(Broken())
    assert described.type.endswith("Broken")
    assert described.message == "(its message can't be shown: __str__ failed)"
    assert described.traceback == f"Traceback (most recent call last):\n{described.type}\n"
