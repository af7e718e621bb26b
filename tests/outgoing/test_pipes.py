"""A pipe per sink: one that hangs or is gone holds up nobody else, keeps its lease, and is left in peace."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from oncebox.core.relay import TAKE_MAX
from oncebox.engines.queries import SQLITE_NOW
from oncebox.errors import BrokerUnavailable, QueueFull
from oncebox.runtime import relay as runtime
from oncebox.runtime.relay import Relay
from tests.core.fixtures import stored
from tests.core.kit import Shop
from tests.outgoing.kit import ScriptedSink, outbox_ids, outbox_rows, put, relay
from tests.waiting import eventually_async

pytestmark = stored


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that hangs is not waited for when the test is over."""
    monkeypatch.setattr(runtime, "CLOSE_SECONDS", 0.5)


@asynccontextmanager
async def at_work(it: Relay) -> AsyncIterator[None]:
    """The relay as an app runs it."""
    task = asyncio.create_task(it.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_sink_that_hangs_holds_up_no_other(shop: Shop) -> None:
    slow, fast = ScriptedSink("slow"), ScriptedSink("fast")
    slow.hangs = True
    put(shop, *(f"slow-{n}" for n in range(TAKE_MAX + 50)), type="slow.a")
    async with relay(shop, {"slow.*": slow, "*": fast}) as it, at_work(it):
        await eventually_async(lambda: slow.asked)
        put(shop, "k-slow", type="slow.b", key="k")
        put(shop, "k-fast", "free", type="fast", key="k")
        await eventually_async(lambda: fast.ids == ["k-fast", "free"], 15)
        await eventually_async(lambda: len(outbox_ids(shop)) == TAKE_MAX + 51)
        assert len(slow.asked) == 1, "one batch is out at a time: a slow broker is not buried under more"


async def test_the_lease_is_kept_while_a_sink_hangs(shop: Shop, sink: ScriptedSink) -> None:
    sink.hangs = True
    put(shop, "a")
    slots = f"{shop.table('slot')} WHERE slot < 32"
    now = SQLITE_NOW if shop.kind.engine == "sqlite" else "statement_timestamp()"
    async with relay(shop, sink, lease_seconds=1.5) as it, at_work(it):
        await eventually_async(lambda: sink.asked)
        ((over,),) = shop.rows(f"SELECT min(until) FROM {slots}")
        await eventually_async(lambda: shop.rows(f"SELECT 1 WHERE {now} > ?", over))
        kept = f"SELECT count(*) FROM {slots} AND relay = 'relay-1' AND until > {now}"
        await eventually_async(lambda: shop.rows(kept) == [(32,)])
        assert sink.asked == [["a"]]


async def test_a_key_waits_for_its_own_sink_only(shop: Shop) -> None:
    gone, there = ScriptedSink("gone"), ScriptedSink("there")
    gone.raises = BrokerUnavailable("gone")
    put(shop, "k1", type="gone", key="k")
    async with relay(shop, {"gone": gone, "*": there}) as it:
        it.pipes.pause = lambda losses: 3600.0
        await it.turn()
        put(shop, "k2", type="there", key="k")
        put(shop, "k3", type="gone", key="k")
        await it.turn()
    assert (there.ids, outbox_ids(shop)) == (["k2"], ["k1", "k3"])


async def test_an_outage_pauses_its_lane_and_leaves_the_rest_of_the_outbox_alone(
    shop: Shop, sink: ScriptedSink
) -> None:
    sink.raises = BrokerUnavailable("gone")
    pauses: list[int] = []
    put(shop, "a")
    async with relay(shop, sink) as it:
        it.pipes.pause = lambda losses: (pauses.append(losses), 3600.0)[1]  # type: ignore[func-returns-value]
        await it.turn()
        put(shop, "b")
        assert await it.turn() == 0
        assert (sink.asked, outbox_rows(shop, "id, attempts")) == ([["a"]], [("a", 1), ("b", 0)])
        it.pipes.all[0]._back_at = 0.0
        await it.turn()
        sink.raises = None
        it.pipes.all[0]._back_at = 0.0
        await it.turn()
    assert (pauses, outbox_ids(shop)) == ([1, 2], [])


async def test_a_queue_that_is_full_parks_nothing(shop: Shop, sink: ScriptedSink) -> None:
    sink.judge = lambda message: QueueFull("full") if message.id == "a" else None
    put(shop, "a", "b")
    async with relay(shop, sink) as it:
        for _ in range(6):
            await it.turn()
        assert outbox_rows(shop, "id, state") == [("a", 0)]


async def test_a_relay_that_stops_waits_for_what_is_on_its_way(shop: Shop, sink: ScriptedSink) -> None:
    asked, confirm = asyncio.Event(), asyncio.Event()
    taken = sink.publish

    async def publish(messages: object) -> list[BaseException | None]:
        asked.set()
        await confirm.wait()
        return await taken(messages)  # type: ignore[arg-type]

    sink.publish = publish  # type: ignore[method-assign]
    put(shop, "a")
    async with relay(shop, sink) as it:
        await it.step()
        await asked.wait()
        asyncio.get_running_loop().call_later(0.05, confirm.set)
    assert (sink.ids, outbox_ids(shop)) == (["a"], [])


async def test_a_long_look_that_finds_nothing_is_followed_by_a_rest(
    shop: Shop, sink: ScriptedSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "LOOK_SECONDS", 0.0)
    async with relay(shop, sink) as it:
        await it.turn()
        assert it._rest_seconds > 0, "no more than half of the time is spent on looking"
        put(shop, "a")
        assert (await it.turn(), it._rest_seconds) == (1, 0.0)


async def test_a_sink_that_ignores_its_cancellation_does_not_stop_the_relay(
    shop: Shop, sink: ScriptedSink
) -> None:
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def publish(messages: object) -> list[BaseException | None]:
        asked.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return [None]

    sink.publish = publish  # type: ignore[method-assign]
    put(shop, "a")
    async with relay(shop, sink) as it:
        await it.step()
        await asked.wait()
        async with asyncio.timeout(10):
            await it._abandon()
        assert it.pipes.all[0].away_seconds == 0, "the next batch may go"
        let_go.set()
