"""Duplicates told by watermark: one row per partition, moved with the effects, and only in order."""

from __future__ import annotations

from typing import Any

import pytest

from oncebox import Backoff, Consumer, Dead, Status
from oncebox.core.outcomes import Outcome
from oncebox.core.place import Place
from oncebox.core.work import Item
from oncebox.errors import TopicChanged
from oncebox.runtime.mailbox import ThreadMailbox
from oncebox.runtime.workers import inline_turn
from tests.core.fixtures import inline, on
from tests.core.kit import Call, Shop, effect, event

pytestmark = inline

ONE = Backoff(attempts=1)


def at(consumer: Consumer, offset: int, after: int | None = None, **words: Any) -> Item:
    """The message at an offset of the only partition; read after the one before it."""
    item = consumer.intake.from_message(event(f"m{offset}", type=words.pop("type", "paid")))
    after = offset - 1 if after is None else after
    item.place = Place("clicks", 0, offset, after, raw=words.pop("raw", b"%d" % offset), **words)
    return item


async def read(shop: Shop, consumer: Consumer, *items: Item) -> list[tuple[str, Status]]:
    """What a worker makes of them, in the order in which it settles them."""
    return [(item.message.id, _outcome(item).status) for item in await settled(shop, consumer, *items)]


async def settled(shop: Shop, consumer: Consumer, *items: Item) -> list[Item]:
    mailbox, found = ThreadMailbox(), list[Item]()
    mailbox.items.extend(items)
    for _ in range(100):
        turn = await shop.perform(
            consumer, lambda work: inline_turn(work, mailbox), settled=found, mailbox=mailbox
        )
        if not turn:
            return found
    raise AssertionError("it comes to no end")


def _outcome(item: Item) -> Outcome:
    assert item.outcome is not None
    return item.outcome


def marks(shop: Shop) -> list[tuple[Any, ...]]:
    return shop.rows(f"SELECT topic, partition, last FROM {shop.table('watermark')} ORDER BY partition")


def clicks(shop: Shop, **policy: Any) -> Consumer:
    consumer = shop.consumer("stats", **policy)
    shop.handler(consumer, "paid")(effect)
    return consumer


@on("sqlite", "psycopg", "psycopg-async", "asyncpg")
@pytest.mark.parametrize("batch", [1, 10])
async def test_effects_move_one_row_and_what_is_read_again_is_a_duplicate(shop: Shop, batch: int) -> None:
    stats = clicks(shop, batch=batch)
    first = [at(stats, 0, -1), *(at(stats, offset) for offset in range(1, 5))]
    assert [status for _, status in await read(shop, stats, *first)] == [Status.PROCESSED] * 5
    again = [at(stats, 3, -1), at(stats, 4), at(stats, 9, 4)]
    assert await read(shop, stats, *again) == [
        ("m3", Status.DUPLICATE), ("m4", Status.DUPLICATE), ("m9", Status.PROCESSED)
    ]  # fmt: skip
    assert shop.effects() == {f"m{offset}": 1 for offset in (0, 1, 2, 3, 4, 9)}
    assert marks(shop) == [("clicks", 0, 9)]
    assert shop.count("ledger") == shop.count("result") == 0


@on("sqlite", "psycopg", "asyncpg")
async def test_message_is_not_passed_by_the_one_behind_it(shop: Shop) -> None:
    stats = clicks(shop)
    assert await read(shop, stats, at(stats, 5, 4)) == [("m5", Status.IN_FLIGHT)], "nothing is known of 4"
    assert await read(shop, stats, at(stats, 4, -1)) == [("m4", Status.PROCESSED)]
    assert await read(shop, stats, at(stats, 6, 5)) == [("m6", Status.IN_FLIGHT)], "5 is not done"
    assert await read(shop, stats, at(stats, 5, 4), at(stats, 6, 5)) == [
        ("m5", Status.PROCESSED), ("m6", Status.PROCESSED)
    ]  # fmt: skip


@on("sqlite", "psycopg", "asyncpg")
@pytest.mark.parametrize("batch", [1, 10])
async def test_what_fails_is_kept_with_the_move_of_the_mark(shop: Shop, batch: int) -> None:
    stats = clicks(shop, batch=batch, retry=Backoff(attempts=2, base_seconds=0))

    @shop.handler(stats, "late")
    async def first_time_fails(call: Call) -> None:
        if call.tx.attempt == 1:
            raise RuntimeError("not yet")
        await effect(call)

    @shop.handler(stats, "poison")
    async def fails(call: Call) -> None:
        raise Dead("never")

    types = ["paid", "late", "poison", "nobody", "paid"]
    items = [at(stats, offset, offset - 1, type=kind) for offset, kind in enumerate(types)]
    assert dict(await read(shop, stats, *items)) == {
        "m0": Status.PROCESSED, "m1": Status.STORED, "m2": Status.DEAD, "m3": Status.DEAD, "m4": Status.PROCESSED
    }  # fmt: skip
    assert marks(shop) == [("clicks", 0, 4)]
    assert [(row[0], row[1]) for row in shop.dead()] == [("m2", "terminal"), ("m3", "unknown type")]
    assert shop.effects() == {"m0": 1, "m4": 1}
    await shop.work_off(stats)
    assert shop.effects() == {"m0": 1, "m1": 1, "m4": 1}
    assert shop.count("ledger") == 3, "a row for what failed, and for nothing else"


@on("sqlite", "psycopg", "asyncpg")
async def test_handler_that_ends_its_transaction_moves_nothing(shop: Shop) -> None:
    stats = shop.consumer("stats", retry=ONE)

    @shop.handler(stats, "paid")
    async def commits(call: Call) -> None:
        await call.db.effect(call.message.id)
        await call.db.run("COMMIT")

    [(_, status)] = await read(shop, stats, at(stats, 0, -1))
    assert (status, shop.effects()) == (Status.DEAD, {})
    assert marks(shop) == [("clicks", 0, 0)], "it is passed, and kept among the dead"


@on("psycopg", "asyncpg")
async def test_in_a_batch_it_is_not_done_because_it_behaves_the_next_time(shop: Shop) -> None:
    stats = shop.consumer("stats", retry=ONE, batch=10)
    runs: list[str] = []

    @shop.handler(stats, "paid")
    async def goes_on(call: Call) -> None:
        runs.append(call.message.id)
        if runs.count("m1") == 1 == len(runs) - 1:
            await call.db.run("ROLLBACK")
        await call.db.effect(call.message.id)

    found = await read(shop, stats, *(at(stats, offset) for offset in range(3)))
    assert sorted(found) == [("m0", Status.PROCESSED), ("m1", Status.DEAD), ("m2", Status.PROCESSED)]
    assert shop.effects() == {"m0": 1, "m1": 1, "m2": 1}, "m1 wrote outside its transaction, once"
    assert marks(shop) == [("clicks", 0, 2)]


@on("sqlite", "psycopg")
@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"topic_id": "new"}, "the topic's id is new, and was old"),
        ({"end": 3, "asked": float("inf")}, "it ends at offset 3, and offset 4 is handled"),
        ({"raw": b"another"}, "another message lies at offset 4, which is handled"),
    ],
)
async def test_another_topic_of_the_same_name_is_refused_and_not_skipped(
    shop: Shop, facts: dict[str, Any], why: str
) -> None:
    stats = clicks(shop)
    await read(shop, stats, at(stats, 4, -1, topic_id="old"))
    [item] = await settled(shop, stats, at(stats, 4, -1, **facts))
    outcome = _outcome(item)
    assert (outcome.status, type(outcome.error)) == (Status.RETRY, TopicChanged)
    assert why in str(outcome.error)
    assert "oncebox watermarks forget clicks --consumer stats" in str(outcome.error)
    assert (shop.effects(), marks(shop)) == ({"m4": 1}, [("clicks", 0, 4)])


@on("sqlite", "psycopg", "asyncpg")
async def test_end_that_was_asked_before_the_mark_moved_tells_nothing(shop: Shop) -> None:
    stats = clicks(shop)
    await read(shop, stats, at(stats, 0, -1), at(stats, 1), at(stats, 2))
    assert await read(shop, stats, at(stats, 1, -1, end=1, asked=0.0)) == [("m1", Status.DUPLICATE)]


@on("sqlite", "psycopg")
async def test_other_topic_id_is_refused_beyond_the_mark_too(shop: Shop) -> None:
    stats = clicks(shop)
    await read(shop, stats, at(stats, 4, -1, topic_id="old"))
    assert await read(shop, stats, at(stats, 9, -1, topic_id="new")) == [("m9", Status.RETRY)]
    assert await read(shop, stats, at(stats, 9, -1, topic_id="")) == [("m9", Status.PROCESSED)]


@on("sqlite", "psycopg")
async def test_failure_is_kept_though_an_earlier_one_has_its_name(shop: Shop) -> None:
    stats = shop.consumer("stats", retry=ONE)

    @shop.handler(stats, "paid")
    async def fails(call: Call) -> None:
        raise Dead("never")

    await read(shop, stats, at(stats, 0, -1))
    shop.rows(f"DELETE FROM {shop.table('watermark')}")
    assert await read(shop, stats, at(stats, 0, -1)) == [("m0~1", Status.DEAD)]
    assert [row[0] for row in shop.dead()] == ["m0", "m0~1"]


@on("sqlite", "psycopg")
async def test_batch_that_is_out_of_time_leaves_the_mark_at_what_is_done(shop: Shop) -> None:
    stats = clicks(shop, batch=10, batch_seconds=1e-9)
    items = [at(stats, 0, -1), at(stats, 1), at(stats, 2)]

    mailbox, found = ThreadMailbox(), list[Item]()
    mailbox.items.extend(items)
    await shop.perform(stats, lambda work: inline_turn(work, mailbox), settled=found, mailbox=mailbox)
    assert ([item.message.id for item in found], marks(shop)) == (["m0"], [("clicks", 0, 0)])
    assert await read(shop, stats, *mailbox.items) == [("m1", Status.PROCESSED), ("m2", Status.PROCESSED)]
    assert shop.effects() == {"m0": 1, "m1": 1, "m2": 1}


@on("sqlite", "psycopg", "asyncpg")
async def test_dead_message_that_is_read_again_is_told_as_dead(shop: Shop) -> None:
    stats = clicks(shop)
    await read(shop, stats, at(stats, 0, -1), at(stats, 1, type="nobody"), at(stats, 2))
    again = await settled(shop, stats, at(stats, 0, -1), at(stats, 1, type="nobody"), at(stats, 2))
    assert [(_outcome(item).status, _outcome(item).reason) for item in again] == [
        (Status.DUPLICATE, ""), (Status.DEAD, "unknown type"), (Status.DUPLICATE, "")
    ]  # fmt: skip
    assert len(shop.dead()) == 1
