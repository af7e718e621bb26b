"""Parked messages: listed, tried again or let go by a person, with an audit row each in the same transaction."""

import json
from pathlib import Path
from typing import Any

import pytest

from oncebox.core.audit import Act
from oncebox.core.parked import BATCH, Choice, decide, parked
from oncebox.errors import BrokerError
from tests.cli.kit import oncebox
from tests.core.fixtures import on, stored
from tests.core.kit import Shop
from tests.outgoing.abandon import Abandoned
from tests.outgoing.kit import ScriptedSink, outbox_ids, outbox_rows, put, relay
from tests.outgoing.test_settle import ask

pytestmark = stored
AUDIT = "act, who, verb, reason, filter, consumer, source, message_id, result"


def park(shop: Shop, *ids: str, error: str = "refused") -> None:
    """As a relay does when their budget is spent."""
    settled = "1" if shop.kind.engine == "sqlite" else "now()"
    for id_ in ids:
        shop.rows(
            f"UPDATE {shop.table('outbox')} SET state = 2, attempts = 20, error = ?, settled = {settled} WHERE id = ?",
            error,
            id_,
        )


def audit_rows(shop: Shop, columns: str = "verb, message_id, result") -> list[tuple[Any, ...]]:
    return shop.rows(f"SELECT {columns} FROM {shop.table('audit')} ORDER BY seq")


def act(verb: str = "outbox retry") -> Act:
    return Act(verb=verb, who="ann@desk", reason="topic was created", filter={"type": "paid"})


async def test_what_the_relay_parked_is_listed_with_its_reason(shop: Shop, sink: ScriptedSink) -> None:
    sink.judge = lambda message: BrokerError("no such topic")
    put(shop, "a", key="k", topic="t")
    async with relay(shop, sink) as it:
        for _ in range(3):
            await it.turn()
    (found,) = await ask(shop, parked(shop.app.database.queries))
    assert (found.id, found.source, found.type, found.topic, found.key, found.attempts, found.error) == (
        "a", "shop", "paid", "t", "k", 3, "oncebox.errors.BrokerError: no such topic"
    )  # fmt: skip
    assert 0 <= found.parked_seconds <= found.age_seconds < 60


async def test_retried_ones_go_out_with_their_ids_and_leave_an_audit_row_each(
    shop: Shop, sink: ScriptedSink
) -> None:
    queries = shop.app.database.queries
    put(shop, "a", "b", "waiting")
    put(shop, "other", type="order.placed")
    park(shop, "a", "b", "other")
    made = act()
    done = await ask(shop, decide(queries, "retry", Choice(type="paid"), made))
    assert [each.id for each in done] == ["a", "b"]
    assert outbox_rows(shop, "id, state, attempts") == [
        ("a", 0, 0), ("b", 0, 0), ("waiting", 0, 0), ("other", 2, 20)
    ]  # fmt: skip
    assert audit_rows(shop, AUDIT) == [
        (
            made.id,
            "ann@desk",
            "outbox retry",
            "topic was created",
            '{"type":"paid"}',
            "",
            "shop",
            id_,
            "waiting",
        )
        for id_ in ("a", "b")
    ]
    assert await ask(shop, decide(queries, "retry", Choice(type="paid"), made)) == []
    async with relay(shop, sink) as it:
        await it.turn()
    assert (sink.ids, len(audit_rows(shop))) == (["a", "b", "waiting"], 2)


async def test_discarded_ones_are_gone_and_only_they(shop: Shop) -> None:
    put(shop, "a", "b", "c")
    park(shop, "a", "b")
    choice = Choice(ids=("a", "c"))
    done = await ask(shop, decide(shop.app.database.queries, "discard", choice, act("outbox discard")))
    assert [each.id for each in done] == ["a"], "what is not parked is not anybody's to discard"
    assert outbox_ids(shop) == ["b", "c"]
    assert audit_rows(shop) == [("outbox discard", "a", "discarded")]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_at_any_step_change_and_audit_stand_or_fall_together(shop: Shop, when: str) -> None:
    queries = shop.app.database.queries
    number, died = 0, True
    while died:
        number += 1
        id_ = f"a{number}"
        put(shop, id_)
        park(shop, id_)
        cut = Abandoned(number, when)
        await ask(shop, cut(decide(queries, "discard", Choice(ids=(id_,)), act())))
        died = cut.died
        assert (id_ in outbox_ids(shop)) != (("outbox retry", id_, "discarded") in audit_rows(shop))
    assert number > 3


@pytest.mark.timeout(300)
@on("sqlite", "psycopg")
async def test_the_commands(shop: Shop, tmp_path: Path) -> None:
    where = ("--database", shop._url)
    assert "Nothing is parked." in oncebox("outbox", "list", *where, cwd=tmp_path).out
    put(shop, *(f"n{n}" for n in range(BATCH + 2)), type="bulk")
    put(shop, "a", "b", "c")
    park(shop, "a", "b", error="no \x1b[31mtopic")
    shop.rows(f"UPDATE {shop.table('outbox')} SET state = 2, settled = created WHERE type = 'bulk'")
    listed = oncebox("outbox", "list", "--type", "paid", *where, "--json", cwd=tmp_path).json()
    assert [each["id"] for each in listed["parked"]] == ["a", "b"]
    shown = oncebox("outbox", "list", "--type", "paid", *where, cwd=tmp_path).out
    assert "topic" in shown
    assert "\x1b" not in shown
    refusals: list[tuple[tuple[str, ...], str]] = [
        ((), "name the messages: ids, or --all"),
        (("a", "--all"), "name the messages: ids, or --all"),
        (("a",), 'say why: --reason "…"'),
        (("a", "--reason", " "), 'say why: --reason "…"'),
        (("a", "--reason", "x", "--apply"), "--apply goes with --all"),
        (("c", "nobody", "--reason", "x"), "not parked: 'c', 'nobody'"),
    ]
    for number, (words, text) in enumerate(refusals if shop.kind.engine == "sqlite" else []):
        refused = oncebox("outbox", ("retry", "discard")[number % 2], *words, *where, cwd=tmp_path)
        assert (refused.code, text in refused.err) == (2, True), refused
    assert audit_rows(shop) == []
    bulk = ("--all", "--type", "bulk", "--reason", "sink was added", "--by", "ann", *where)
    dry = oncebox("outbox", "retry", *bulk, cwd=tmp_path)
    assert (f"{BATCH + 2} would be published; do it with --apply" in dry.out, audit_rows(shop)) == (True, [])
    done = oncebox("outbox", "retry", *bulk, "--apply", "--json", cwd=tmp_path).json()
    assert (done["count"], done["applied"], len(done["ids"])) == (BATCH + 2, True, BATCH + 2)
    assert set(audit_rows(shop, "act, who")) == {(done["act"], "ann")}
    assert len(audit_rows(shop)) == BATCH + 2
    let_go = oncebox("outbox", "discard", "a", "--reason", "cancelled", *where, cwd=tmp_path)
    assert "1 deleted" in let_go.out, let_go.err
    again = oncebox("outbox", "retry", "b", "--reason", "topic is there", *where, cwd=tmp_path)
    assert "1 will be published" in again.out, again.err
    ((filtered, by),) = shop.rows(f"SELECT filter, who FROM {shop.table('audit')} WHERE message_id = ?", "a")
    assert json.loads(filtered) == {"ids": ["a"]}
    assert "@" in by
    assert outbox_rows(shop, "id, state")[-2:] == [("b", 0), ("c", 0)]
