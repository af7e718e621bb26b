"""Several relays on one outbox, late commits, ordered publications, and being woken."""

import asyncio
from typing import Any

import psycopg

from oncebox import Outbox
from oncebox.core.outgoing import SLOTS
from oncebox.core.relay import release
from oncebox.core.run import run_async
from oncebox.runtime import relay as runtime
from oncebox.runtime.relay import Bell
from tests.core.fixtures import on, stored
from tests.core.kit import Call, Shop, event
from tests.outgoing.kit import ScriptedSink, outbox_ids, put, relay, until
from tests.waiting import eventually_async

pytestmark = stored
KEYS = [f"key-{n}" for n in range(60)]


async def leased(*relays: runtime.Relay) -> list[int]:
    """How many slots each has after renewing its lease."""
    for it in relays:
        it._leased_until = 0.0
        await it.turn()
    return [len(it.relaying.slots) for it in relays]


async def test_relays_share_the_slots_and_each_key_has_one_relay(shop: Shop) -> None:
    one, two = ScriptedSink("one"), ScriptedSink("two")
    async with relay(shop, one, "r1") as first, relay(shop, two, "r2") as second:
        assert await leased(first) == [SLOTS]
        await leased(second, first)
        assert await leased(second, first) == [SLOTS // 2] * 2
        assert not set(first.relaying.slots) & set(second.relaying.slots)
        for key in KEYS:
            put(shop, f"{key}/1", f"{key}/2", key=key)
        await asyncio.gather(first.turn(), second.turn())
    assert sorted(one.ids + two.ids) == sorted(f"{key}/{n}" for key in KEYS for n in (1, 2))
    assert one.ids
    assert two.ids
    assert not {m.key for m in one.taken} & {m.key for m in two.taken}


async def test_a_stopped_relays_slots_are_free_at_once(shop: Shop, sink: ScriptedSink) -> None:
    async with relay(shop, sink, "r2") as second:
        async with relay(shop, sink, "r1") as first:
            await leased(first)
            await leased(second, first, second)
        assert await leased(second) == [SLOTS]
    assert shop.rows(f"SELECT count(*) FROM {shop.table('slot')} WHERE relay <> ''") == [(0,)]


async def test_a_killed_relays_slots_are_taken_over_when_its_lease_lapses(
    shop: Shop, sink: ScriptedSink
) -> None:
    dead = ScriptedSink("dead")
    async with relay(shop, dead, "dead", lease_seconds=0.3) as victim:
        await leased(victim)
        put(shop, *KEYS)
        dead.hangs = True
        stuck = asyncio.create_task(victim.turn())
        await eventually_async(lambda: dead.asked)
        async with relay(shop, sink, "alive") as other:

            async def taken_over() -> bool:
                return (await leased(other))[0] == SLOTS and not outbox_ids(shop)

            await until(taken_over)
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)
    assert sorted(sink.ids) == sorted(KEYS)


@on("psycopg")
async def test_a_row_that_commits_late_is_published_all_the_same(shop: Shop, sink: ScriptedSink) -> None:
    with psycopg.connect(shop._url) as late:
        Outbox().publish(late, "paid", {}, id="late")
        put(shop, "early")
        async with relay(shop, sink) as it:
            await it.turn()
            assert sink.ids == ["early"]
            late.commit()
            await it.turn()
    assert sink.ids == ["early", "late"], "a lower number that commits later is not skipped"


@on("psycopg")
async def test_ordered_publications_of_a_key_wait_for_each_other(shop: Shop, sink: ScriptedSink) -> None:
    outbox = Outbox(notify=False)
    with psycopg.connect(shop._url) as one, psycopg.connect(shop._url) as two:
        outbox.publish(one, "paid", {}, id="first", key="k", ordered=True)

        def second() -> None:
            outbox.publish(two, "paid", {}, id="second", key="k", ordered=True)
            two.commit()

        waiting = asyncio.get_running_loop().run_in_executor(None, second)
        blocked = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        await eventually_async(lambda: shop.rows(blocked))
        put(shop, "other", key="other", ordered=True)
        put(shop, "free", key="k")
        one.commit()
        await waiting
    async with relay(shop, sink) as it:
        await it.turn()
    assert [id_ for id_ in sink.ids if id_ in ("first", "second")] == ["first", "second"]
    assert {"other", "free"} <= set(sink.ids)


@on("psycopg", "asyncpg")
async def test_notify_wakes_a_relay_of_another_connection(shop: Shop, monkeypatch: Any) -> None:
    heard = asyncio.Event()
    bell = Bell()
    bell.ring = heard.set  # type: ignore[method-assign]
    listening = asyncio.create_task(runtime.listen(shop.app.database, bell))

    async def rang() -> bool:
        with psycopg.connect(shop._url) as connection:
            Outbox().publish(connection, "paid", {})
        return heard.is_set()

    try:
        await until(rang)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_a_running_app_publishes_what_its_handlers_say(shop: Shop, sink: ScriptedSink) -> None:
    billing = shop.consumer()

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        call.tx.publish("receipt", {}, id=f"out-{call.message.id}")

    async with shop.app.running():
        for n in range(20):
            await shop.deliver(billing, event(f"e{n}"))
        await eventually_async(lambda: len(sink.ids) == 20 and outbox_ids(shop) == [])
    assert sorted(sink.ids) == sorted(f"out-e{n}" for n in range(20))


async def test_polling_is_enough(shop: Shop, sink: ScriptedSink, monkeypatch: Any) -> None:
    monkeypatch.setattr(runtime, "POLL_SECONDS", 0.02)
    async with shop.app.running(only=("relay",)):
        put(shop, "a", "b")
        await eventually_async(lambda: outbox_ids(shop) == [])
    assert sink.ids == ["a", "b"]


@on("psycopg")
async def test_a_commit_wakes_the_relay_and_no_poll_is_waited_for(
    shop: Shop, sink: ScriptedSink, monkeypatch: Any
) -> None:
    monkeypatch.setattr(runtime, "POLL_SECONDS", 3600.0)
    async with shop.app.running(only=("relay",)):

        async def awake() -> bool:
            with psycopg.connect(shop._url) as connection:
                Outbox().publish(connection, "paid", {})
            return bool(sink.ids)

        await until(awake)
        with psycopg.connect(shop._url) as connection:
            for n in range(20):
                await asyncio.to_thread(Outbox().publish, connection, "paid", {}, id=f"n{n}")
                await asyncio.to_thread(connection.commit)
                # How long that takes is the benchmark's.
                await eventually_async(lambda wanted=f"n{n}": wanted in sink.ids)  # type: ignore[misc]


async def test_release_is_heard_by_nobody_twice(shop: Shop, sink: ScriptedSink) -> None:
    """Two processes that come and go leave no seat behind."""
    async with relay(shop, sink, "r1") as it:
        await leased(it)
        await run_async(release(it.relaying), it._perform)
    assert shop.rows(f"SELECT count(*) FROM {shop.table('slot')}") == [(SLOTS,)]
