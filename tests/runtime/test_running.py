"""An app at work on the in-process broker: every delivery is answered, nothing is lost, nothing doubled."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from oncebox import App, Backoff, Consumer, Message, Retry
from oncebox.brokers.contract import Delivery
from oncebox.brokers.memory import Memory
from oncebox.errors import MessageError, SchemaMissing
from tests.core.fixtures import inline, on, postgresql, stored
from tests.core.kit import Call, Shop, effect, event
from tests.waiting import eventually_async

QUEUE = "payments"
PATIENCE_SECONDS = 30.0


async def until(predicate: Callable[[], Any]) -> None:
    await eventually_async(predicate, PATIENCE_SECONDS)


async def all_done(shop: Shop, memory: Memory) -> None:
    """Nothing left at the broker, nothing left in the queue."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        await memory.drained()
    await until(lambda: shop.count("queue") == 0)


def subscribed(shop: Shop, memory: Memory, **policy: Any) -> Consumer:
    return shop.consumer("billing", memory.queue(QUEUE), **policy)


async def test_duplicates_from_the_broker_take_effect_once_and_are_all_acked(shop: Shop) -> None:
    memory = Memory()
    shop.handler(subscribed(shop, memory))(effect)
    memory.put(QUEUE, *(event(f"evt-{n}") for n in range(30)), duplicates=2)
    async with shop.app.running():
        await all_done(shop, memory)

    assert shop.effects() == {f"evt-{n}": 1 for n in range(30)}
    stats = memory.stats()[QUEUE]
    assert (stats.acked, stats.nacked, stats.depth) == (90, 0, 0)


@inline
@on("asyncpg", "psycopg")
async def test_an_answer_that_a_worker_waits_for_does_not_wait_for_others(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker hands out two at a time, and one of them takes long: the other's answer brings the next."""
    monkeypatch.setattr("oncebox.runtime.feed.ANSWER_SECONDS", 3600.0)
    memory = Memory()
    billing = shop.consumer("billing", memory.queue(QUEUE, prefetch=2), concurrency=2)
    began = threading.Event()
    go_on = threading.Event()

    @shop.handler(billing)
    async def slow_first(call: Call) -> None:
        if call.message.id == "slow":
            began.set()
            if shop.kind.is_async:
                await asyncio.to_thread(go_on.wait, PATIENCE_SECONDS)
            else:
                go_on.wait(PATIENCE_SECONDS)
        await effect(call)

    memory.put(QUEUE, event("slow"))
    async with shop.app.running():
        await until(began.is_set)
        memory.put(QUEUE, *(event(f"evt-{n}") for n in range(20)))
        await until(lambda: memory.stats()[QUEUE].acked == 20)
        go_on.set()
        await all_done(shop, memory)


@inline
@on("asyncpg", "psycopg")
async def test_what_was_received_with_a_slow_one_does_not_wait_for_it(shop: Shop) -> None:
    memory = Memory()
    billing = shop.consumer("billing", memory.queue(QUEUE), concurrency=2)
    go_on = threading.Event()

    @shop.handler(billing)
    async def slow_first(call: Call) -> None:
        if call.message.id == "slow":
            if shop.kind.is_async:
                await asyncio.to_thread(go_on.wait, PATIENCE_SECONDS)
            else:
                go_on.wait(PATIENCE_SECONDS)
        await effect(call)

    memory.put(QUEUE, event("slow"), *(event(f"evt-{n}") for n in range(20)))
    async with shop.app.running():
        await until(lambda: memory.stats()[QUEUE].acked == 20)
        go_on.set()
        await all_done(shop, memory)


async def test_batches_from_the_broker_take_effect_once(shop: Shop) -> None:
    memory = Memory()
    shop.handler(subscribed(shop, memory, batch=20))(effect)
    memory.put(QUEUE, *(event(f"evt-{n}", key=f"k{n % 3}") for n in range(100)), duplicates=1)
    async with shop.app.running():
        await all_done(shop, memory)
    assert shop.effects() == {f"evt-{n}": 1 for n in range(100)}
    assert memory.stats()[QUEUE].acked == 200


async def test_a_failure_comes_back_after_its_delay_and_is_acked_when_it_is_done(shop: Shop) -> None:
    memory = Memory()
    billing = subscribed(shop, memory, retry=Backoff(attempts=5))
    attempts: list[int] = []

    @shop.handler(billing)
    async def third_time(call: Call) -> None:
        attempts.append(call.tx.attempt)
        await call.db.effect(call.message.id)
        if len(attempts) < 3:
            raise Retry("not yet", after=0.01)

    memory.put(QUEUE, event())
    async with shop.app.running():
        await all_done(shop, memory)
    assert attempts == [1, 2, 3]
    assert shop.effects() == {"evt-1": 1}
    stats = memory.stats()[QUEUE]
    assert (stats.acked, stats.nacked) == ((1, 2) if shop.mode == "inline" else (1, 0))


async def test_leaving_finishes_what_is_in_hand_and_loses_nothing(shop: Shop) -> None:
    memory = Memory()
    started: list[str] = []
    billing = subscribed(shop, memory)

    @shop.handler(billing)
    async def counted(call: Call) -> None:
        started.append(call.message.id)
        await call.db.effect(call.message.id)

    def is_further(before: int) -> bool:
        return len(started) > before or len(shop.effects()) == 40

    ids = [f"evt-{n}" for n in range(40)]
    memory.put(QUEUE, *map(event, ids))
    rounds = 0
    while shop.effects().keys() != set(ids):
        rounds += 1
        async with shop.app.running():
            await until(partial(is_further, len(started)))
        waiting = shop.count("queue")
        assert memory.stats()[QUEUE].in_flight == 0, "released, so that others need not wait"
        assert len(shop.effects()) + waiting + memory.stats()[QUEUE].depth >= 40, "nothing lost"
        assert rounds <= 40
    assert shop.effects() == dict.fromkeys(ids, 1)
    assert len(started) == 40, "nothing that was started was thrown away"


async def test_leaving_takes_the_workers_rows_along(shop: Shop) -> None:
    memory = Memory()
    shop.handler(subscribed(shop, memory))(effect)
    memory.put(QUEUE, event())
    async with shop.app.running():
        await until(lambda: shop.count("worker") == 1)
        await all_done(shop, memory)
    assert shop.count("worker") == shop.count("hand") == 0


async def test_outcomes_are_counted_per_minute_and_type(shop: Shop) -> None:
    memory = Memory()
    shop.handler(subscribed(shop, memory), "paid")(effect)
    memory.put(QUEUE, event("a"), event("b"), event("b"))
    async with shop.app.running():
        await all_done(shop, memory)
    counts = dict(
        shop.rows(
            f"SELECT outcome, CAST(sum(n) AS integer) FROM {shop.table('tally')} WHERE type = 'paid' GROUP BY outcome"
        )
    )
    assert counts["processed"] == 2
    assert sum(counts.values()) == (3 if shop.mode == "inline" else 5)


BROKEN = {
    "no identity": Delivery(body=b"{}"),
    "an empty id": Delivery(body=b"{}", properties={"message_id": ""}),
    "an id of 10 kB": Delivery(body=b"{}", properties={"message_id": "x" * 10_000}),
    "NUL in its id": Delivery(body=b"{}", properties={"message_id": "a\0b"}),
    "too large": Delivery(body=b"x" * 1_001, properties={"message_id": "large", "type": "paid"}),
    "too many headers": Delivery(
        body=b"{}", headers=tuple((f"h{n}", b"") for n in range(500)), properties={"message_id": "headers"}
    ),
    "not JSON": Delivery(
        body=b"\xff", headers=(("\u00e9", b"\xff"),), properties={"message_id": "bytes", "type": "paid"}
    ),
    "odd content type": Delivery(
        body=b"{", properties={"message_id": "content", "type": "paid", "content_type": "a\0\ud800b"}
    ),
    "odd type": Delivery(body=b"{}", properties={"message_id": "type", "type": "t" * 300}),
}  # fmt: skip


async def test_whatever_arrives_is_kept_acked_and_does_not_stop_the_rest(shop: Shop) -> None:
    memory = Memory()
    shop.handler(subscribed(shop, memory, payload_bytes_max=1_000), "paid")(effect)
    taken = 0
    for name, delivery in BROKEN.items():
        if name == "odd content type":
            with suppress(MessageError):  # the broker itself may not carry what is not text
                memory.put(QUEUE, delivery)
                taken += 1
        else:
            memory.put(QUEUE, delivery)
            taken += 1
    memory.put(QUEUE, event("good"))
    async with shop.app.running():
        await all_done(shop, memory)
    assert shop.effects() == {"good": 1}
    assert shop.count("dead") == taken
    assert memory.stats()[QUEUE].acked == taken + 1
    reasons = {reason for _, reason, _, _ in shop.dead()}
    assert {"no identity", "too large", "undecodable"} <= reasons


class Failing:
    """A store whose disk is full, twice."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.refusals = 2

    def put(self, digest: str, payload: bytes) -> str:
        if self.refusals:
            self.refusals -= 1
            raise OSError("no space left on device")
        self.kept[digest] = payload
        return digest

    def get(self, reference: str) -> bytes:
        return self.kept[reference]

    def delete(self, reference: str) -> None:
        del self.kept[reference]


async def test_a_store_that_is_full_for_a_while_loses_nothing_and_the_source_goes_on(shop: Shop) -> None:
    memory = Memory()
    shop.app.store = Failing()
    shop.handler(subscribed(shop, memory, claim_check_bytes=10), payload=bytes)(effect)
    memory.put(QUEUE, *(event(f"evt-{n}", payload=b"x" * 20) for n in range(3)))
    async with shop.app.running():
        await all_done(shop, memory)
    assert shop.effects() == {f"evt-{n}": 1 for n in range(3)}


@on("sqlite-async", "psycopg-async", "asyncpg")
async def test_a_cancellation_in_a_handler_is_neither_acked_nor_nacked(shop: Shop) -> None:
    memory = Memory()
    runs = 0

    @shop.handler(subscribed(shop, memory))
    async def cancelled_first(call: Call) -> None:
        nonlocal runs
        runs += 1
        await call.db.effect(call.message.id)
        if runs == 1:
            task = asyncio.ensure_future(asyncio.Event().wait())
            task.cancel()
            await task

    memory.put(QUEUE, event())
    async with shop.app.running():
        await all_done(shop, memory)
    assert runs == 2
    assert shop.effects() == {"evt-1": 1}
    assert shop.attempts("evt-1") == []
    stats = memory.stats()[QUEUE]
    assert (stats.acked, stats.nacked) == (1, 0)


async def test_a_handler_that_closes_its_connection_ends_dead_and_the_others_go_on(shop: Shop) -> None:
    memory = Memory()
    billing = subscribed(shop, memory, retry=Backoff(attempts=2, base_seconds=0))

    @shop.handler(billing, "paid")
    async def closes(call: Call) -> None:
        await call.db.effect(call.message.id)
        reply = call.db.raw.close()
        if isinstance(reply, Awaitable):
            await reply

    shop.handler(billing, "good")(effect)
    memory.put(QUEUE, event("bad"), *(event(f"good-{n}", type="good") for n in range(5)))
    async with shop.app.running():
        await all_done(shop, memory)
    assert shop.effects() == {f"good-{n}": 1 for n in range(5)}
    assert [identity for identity, *_ in shop.dead()] == ["bad"]
    assert shop.attempts("bad")


@stored
async def test_sources_and_workers_may_run_apart(shop: Shop) -> None:
    memory = Memory()
    shop.handler(subscribed(shop, memory))(effect)
    memory.put(QUEUE, *(event(f"evt-{n}") for n in range(5)))
    async with shop.app.running(only=("sources",)):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await memory.drained()
    assert (shop.count("queue"), sum(shop.effects().values())) == (5, 0)
    async with shop.app.running(only=("workers",)):
        await until(lambda: shop.count("queue") == 0)
    assert shop.effects() == {f"evt-{n}": 1 for n in range(5)}


@inline
async def test_inline_a_source_is_not_run_without_those_who_handle_what_it_gives(shop: Shop) -> None:
    memory = Memory()
    shop.handler(subscribed(shop, memory))(effect)
    memory.put(QUEUE, event())
    async with shop.app.running(only=("sources",)):
        await all_done(shop, memory)
    assert shop.effects() == {"evt-1": 1}


@postgresql
@inline
async def test_missing_tables_are_told_before_anything_is_received(shop: Shop, pg_url: str) -> None:
    memory = Memory()
    app = App(f"{shop.kind.scheme}://{pg_url.split('://', 1)[1]}")
    app.consumer("billing", memory.queue(QUEUE)).handler()(_never)
    memory.put(QUEUE, event())
    with pytest.raises(SchemaMissing, match="oncebox migrate"):
        async with app.running():
            raise AssertionError("it must not start")
    assert memory.stats()[QUEUE].delivered == 0


async def _never(payload: dict[str, Any], message: Message) -> None:
    raise AssertionError
