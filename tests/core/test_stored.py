"""Stored mode: arrival order, retries, suspects, and workers side by side."""

import asyncio

from oncebox import Backoff, Status
from oncebox.core.reap import reap_lapsed
from tests.core.deaths import die_in_hand
from tests.core.fixtures import postgresql, stored
from tests.core.kit import Call, Shop, effect, event

pytestmark = stored


async def test_one_worker_handles_in_arrival_order(shop: Shop) -> None:
    billing = shop.consumer(batch=3)

    @shop.handler(billing)
    async def noted(call: Call) -> None:
        await call.db.effect("order", call.message.id)

    # Not in the order of their ids; some in one statement, some alone.
    ids = [f"evt-{n * 7 % 20:02}" for n in range(20)]
    await shop.settle_all(billing, [event(identity) for identity in ids])
    assert shop.notes() == ids


async def test_a_retry_comes_back_after_its_delay_and_then_succeeds(shop: Shop) -> None:
    billing = shop.consumer(retry=Backoff(attempts=5, base_seconds=0))
    told: list[tuple[int, int]] = []

    @shop.handler(billing)
    async def third_time(call: Call) -> str:
        told.append((call.tx.attempt, call.message.attempt))
        if call.tx.attempt < 3:
            raise ConnectionError("away")
        return "at last"

    await shop.deliver(billing, event())
    settled = await shop.work_off(billing)
    assert [item.outcome and item.outcome.status for item in settled] == ["retry", "retry", "processed"]
    assert told == [(1, 1), (2, 2), (3, 3)]
    assert (await shop.deliver(billing, event())).result == "at last"


async def test_two_workers_never_handle_one_message_twice(shop: Shop) -> None:
    billing = shop.consumer(batch=5, lock_timeout_seconds=30.0)
    shop.handler(billing)(effect)
    await shop.deliver_at_once(billing, [event(f"evt-{n}") for n in range(40)])

    await asyncio.gather(*(shop.work_off(billing, slot=slot) for slot in range(1, 5)))

    # What is in another's hands is not due for a worker that looks meanwhile: once more, alone.
    await shop.empty_queue(billing)
    assert shop.effects() == {f"evt-{n}": 1 for n in range(40)}


@postgresql
async def test_a_message_in_another_workers_hands_is_passed_over(shop: Shop) -> None:
    billing = shop.consumer()
    gate = shop.gate()

    @shop.handler(billing)
    async def first_waits(call: Call) -> None:
        if call.message.id == "slow":
            await gate.wait()
        await call.db.effect(call.message.id)

    await shop.deliver(billing, event("slow"))
    await shop.deliver(billing, event("quick"))
    slow = asyncio.ensure_future(shop.work(billing, slot=1))
    await gate.reached_by_somebody()

    assert [item.message.id for item in await shop.work(billing, slot=2)] == ["quick"]
    assert await shop.work(billing, slot=2) == []
    gate.open()
    assert [item.message.id for item in await slow] == ["slow"]


async def test_a_death_is_counted_once_and_the_suspect_runs_alone(shop: Shop) -> None:
    billing = shop.consumer(batch=10)
    shop.handler(billing)(effect)
    for n in range(3):
        await shop.deliver(billing, event(f"evt-{n}"))
    await die_in_hand(shop, billing, slot=7)

    # Whoever is reaped by several reapers is counted once.
    reaped = [await shop.perform(billing, lambda work: reap_lapsed(work, -1.0), slot=slot) for slot in (2, 3)]

    assert sum(reaped) == 1
    assert await shop.work_off(billing) == [], "suspects are left out of batches"
    for n in range(3):
        assert [(bool(died), kind) for _, died, kind, _, _ in shop.attempts(f"evt-{n}")] == [
            (True, "oncebox.ProcessDied")
        ]
        assert len(await shop.work(billing, suspect=True)) == 1, "one at a time"
    assert shop.effects() == {f"evt-{n}": 1 for n in range(3)}


async def test_a_message_that_kills_its_worker_again_and_again_is_a_crash_loop(shop: Shop) -> None:
    billing = shop.consumer(crash_limit=3)
    shop.handler(billing)(effect)
    await shop.deliver(billing, event())
    for n in range(3):
        await die_in_hand(shop, billing, slot=10 + n, suspect=n > 0)
        assert await shop.perform(billing, lambda work: reap_lapsed(work, -1.0), slot=2) == 1

    (item,) = await shop.work(billing, suspect=True)

    assert item.outcome is not None
    assert (item.outcome.status, item.outcome.reason) == (Status.DEAD, "crash loop")
    assert [bool(died) for _, died, *_ in shop.attempts("evt-1")] == [True] * 3
    assert shop.dead()[0][:2] == ("evt-1", "crash loop")
    assert not shop.effects()


async def test_until_a_silent_worker_is_reaped_nobody_runs_what_it_had_in_hand(shop: Shop) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    await shop.deliver(billing, event())
    await die_in_hand(shop, billing, slot=7)

    assert await shop.work(billing, slot=1) == []
    assert not shop.effects()
    assert (await shop.deliver(billing, event())).status is Status.WAITING
