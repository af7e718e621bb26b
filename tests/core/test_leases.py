"""Handlers marked long hold a lease: whoever lost it loses its effects too."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from oncebox import Backoff, Consumer, Status
from oncebox.core.leased import work_long
from oncebox.core.work import Item
from oncebox.errors import LeaseLost
from tests.core.bodies import PATIENCE_SECONDS, Gate
from tests.core.deaths import beating
from tests.core.drivers import at_once
from tests.core.fixtures import stored
from tests.core.kit import Call, Shop, event
from tests.waiting import eventually_async

LAPSED = 0.001


def reports(shop: Shop, **policy: Any) -> Consumer:
    """A consumer with one long handler, which notes which run it was."""
    consumer = shop.consumer(**policy)
    runs = 0

    @shop.handler(consumer, "report", long=True)
    async def makes(call: Call) -> int:
        nonlocal runs
        runs += 1
        run = runs
        await call.db.effect(call.message.id, f"run {run}")
        return run

    return consumer


async def stopped_after_leasing(shop: Shop, consumer: Consumer, gate: Gate, slot: int = 1) -> list[Item]:
    """A worker that stands still between its lease and its handler, and cannot extend it."""

    def keep(item: Item, on: bool) -> Any:
        if not on:
            return None
        return gate.wait() if shop.kind.is_async else at_once(gate.wait())

    settled: list[Item] = []
    await shop.perform(consumer, work_long, slot=slot, settled=settled, keep=keep)
    return settled


async def stopped_eventually(shop: Shop, consumer: Consumer, gate: Gate, slot: int) -> None:
    """The same, once there is something to lease."""

    async def leased() -> bool:
        await stopped_after_leasing(shop, consumer, gate, slot)
        return gate.reached.is_set()

    try_again: Callable[[], Any] = leased
    await eventually_async(try_again, PATIENCE_SECONDS)


async def taken_over(shop: Shop, consumer: Consumer, slot: int) -> Item:
    """What another worker settles, once a lease has lapsed by the database's clock."""
    take: Callable[[], Any] = partial(shop.work, consumer, long=True, slot=slot)
    (item,) = await eventually_async(take, PATIENCE_SECONDS)
    assert isinstance(item, Item)
    return item


@stored
async def test_a_long_message_is_handled_and_finished_by_its_token(shop: Shop) -> None:
    reporting = reports(shop)
    await shop.deliver(reporting, event(type="report"))
    assert await shop.work_off(reporting) == [], "not in the effects' transaction"
    (item,) = await shop.work(reporting, long=True)
    assert item.outcome is not None
    assert (item.outcome.status, item.outcome.result) == (Status.PROCESSED, 1)
    assert shop.count("queue") == 0
    assert (await shop.deliver(reporting, event(type="report"))).result == 1


@stored
async def test_while_its_lease_lasts_nobody_else_takes_it(shop: Shop) -> None:
    reporting = reports(shop, lease_seconds=60.0)
    await shop.deliver(reporting, event(type="report"))
    gate = shop.gate()
    first = asyncio.ensure_future(stopped_after_leasing(shop, reporting, gate))
    await gate.reached_by_somebody()
    assert await shop.work(reporting, long=True, slot=2) == []
    assert (await shop.deliver(reporting, event(type="report"))).status is Status.WAITING
    gate.open()
    assert len(await first) == 1
    assert shop.effects() == {"evt-1": 1}


@stored
async def test_a_lapsed_lease_is_taken_over_and_the_late_finishers_effects_roll_back(shop: Shop) -> None:
    reporting = reports(shop, lease_seconds=LAPSED)
    await shop.deliver(reporting, event(type="report"))
    gate = shop.gate()
    late = asyncio.ensure_future(stopped_after_leasing(shop, reporting, gate))
    await gate.reached_by_somebody()

    second = await taken_over(shop, reporting, slot=2)
    gate.open()
    (first,) = await late

    assert second.outcome is not None
    assert first.outcome is not None
    assert second.outcome.status is Status.PROCESSED
    assert first.outcome.status is Status.IN_FLIGHT
    assert isinstance(first.outcome.error, LeaseLost)
    assert "evt-1" in str(first.outcome.error)
    assert shop.effects() == {"evt-1": 1}
    assert shop.notes() == ["run 1"], "the one that took over; the late one ran second, in vain"
    assert [bool(died) for _, died, *_ in shop.attempts("evt-1")] == [True], "a lapse is a death on record"


@stored
async def test_a_late_failure_is_not_charged_to_whoever_took_over(shop: Shop) -> None:
    reporting = shop.consumer(lease_seconds=LAPSED, retry=Backoff(base_seconds=0))
    runs = 0

    @shop.handler(reporting, "report", long=True)
    async def second_fails(call: Call) -> None:
        nonlocal runs
        runs += 1
        if runs == 2:
            raise ValueError("late")
        await call.db.effect(call.message.id)

    await shop.deliver(reporting, event(type="report"))
    gate = shop.gate()
    late = asyncio.ensure_future(stopped_after_leasing(shop, reporting, gate))
    await gate.reached_by_somebody()
    await taken_over(shop, reporting, slot=2)
    gate.open()
    (first,) = await late

    assert first.outcome is not None
    assert first.outcome.status is Status.IN_FLIGHT
    assert [kind for _, _, kind, _, _ in shop.attempts("evt-1") if kind == "ValueError"] == []
    assert shop.effects() == {"evt-1": 1}


@stored
async def test_leases_that_keep_lapsing_end_as_a_crash_loop(shop: Shop) -> None:
    reporting = reports(shop, lease_seconds=LAPSED, crash_limit=2)
    await shop.deliver(reporting, event(type="report"))
    gates = {slot: shop.gate() for slot in (1, 2)}
    stopped = []
    for slot, gate in gates.items():
        stopped.append(asyncio.ensure_future(stopped_eventually(shop, reporting, gate, slot)))
        await gate.reached_by_somebody()
    item = await taken_over(shop, reporting, slot=3)
    for gate in gates.values():
        gate.open()
    await asyncio.gather(*stopped)

    assert item.outcome is not None
    assert item.outcome.reason == "crash loop"
    assert [bool(died) for _, died, *_ in shop.attempts("evt-1")] == [True, True]
    assert not shop.effects()


@stored
async def test_a_lapse_of_a_worker_that_lives_on_is_no_death(shop: Shop) -> None:
    reporting = reports(shop, lease_seconds=LAPSED)
    await shop.deliver(reporting, event(type="report"))
    await shop.perform(reporting, beating)
    gate = shop.gate()
    late = asyncio.ensure_future(stopped_after_leasing(shop, reporting, gate))
    await gate.reached_by_somebody()
    await taken_over(shop, reporting, slot=2)
    gate.open()
    await late
    assert shop.attempts("evt-1") == []
    assert shop.effects() == {"evt-1": 1}


@stored
async def test_a_long_handler_that_fails_is_retried_and_then_dead(shop: Shop) -> None:
    reporting = shop.consumer(retry=Backoff(attempts=2, base_seconds=0))

    @shop.handler(reporting, "report", long=True)
    async def fails(call: Call) -> None:
        await call.db.effect(call.message.id)
        raise ValueError("no")

    await shop.deliver(reporting, event(type="report"))
    statuses = [
        item.outcome.status
        for _ in range(2)
        for item in await shop.work(reporting, long=True)
        if item.outcome
    ]
    assert statuses == [Status.RETRY, Status.DEAD]
    assert not shop.effects()


@stored
async def test_a_long_handler_must_not_commit_by_itself_either(shop: Shop) -> None:
    reporting = shop.consumer()

    @shop.handler(reporting, "report", long=True)
    async def commits(call: Call) -> None:
        await call.db.effect(call.message.id)
        await call.db.run("COMMIT")

    await shop.deliver(reporting, event(type="report"))
    (item,) = await shop.work(reporting, long=True)
    assert item.outcome is not None
    assert (item.outcome.status, item.outcome.reason) == (Status.DEAD, "terminal")
    assert not shop.effects()
