"""Deadlocks and serialization failures are nobody's fault: run again, uncharged, within a bound."""

import asyncio
import threading

import pytest

from oncebox import Consumer, Status
from tests.core.bodies import PATIENCE_SECONDS
from tests.core.fixtures import inline, postgresql, stored
from tests.core.kit import Call, Shop, event

pytestmark = postgresql


def crossing(shop: Shop, consumer: Consumer) -> list[str]:
    """Handlers that lock two rows in opposite order, each holding its first when it asks for the second."""
    runs: list[str] = []
    both = threading.Barrier(2)
    shop.rows("INSERT INTO shop_effect VALUES ('row-a', ''), ('row-b', '')")

    async def meet() -> None:
        if shop.kind.is_async:
            await asyncio.get_running_loop().run_in_executor(None, both.wait, PATIENCE_SECONDS)
        else:
            both.wait(PATIENCE_SECONDS)

    @shop.handler(consumer)
    async def locks(call: Call) -> None:
        runs.append(call.message.id)
        order = ("row-a", "row-b") if call.message.id == "a" else ("row-b", "row-a")
        await call.db.run("SET LOCAL deadlock_timeout = '50ms'")
        await call.db.run("UPDATE shop_effect SET note = note || 'x' WHERE key = ?", order[0])
        if runs.count(call.message.id) == 1:
            await meet()
        await call.db.run("UPDATE shop_effect SET note = note || 'x' WHERE key = ?", order[1])

    return runs


@inline
async def test_a_deadlock_is_run_again_and_charged_to_nobody(shop: Shop) -> None:
    billing = shop.consumer()
    runs = crossing(shop, billing)
    outcomes = await shop.deliver_at_once(billing, [event("a"), event("b")])
    assert [outcome.status for outcome in outcomes] == [Status.PROCESSED] * 2
    assert len(runs) > 2, "at least one of them ran again"
    assert shop.count("attempt") == 0
    assert shop.notes() == ["xx", "xx"]


@stored
async def test_a_stored_deadlock_is_run_again_and_charged_to_nobody(shop: Shop) -> None:
    billing = shop.consumer()
    runs = crossing(shop, billing)
    for identity in ("a", "b"):
        await shop.deliver(billing, event(identity))
    await asyncio.gather(*(shop.work_off(billing, slot=slot) for slot in (1, 2)))
    await shop.empty_queue(billing)
    assert len(runs) > 2, "at least one of them ran again"
    assert shop.count("attempt") == shop.count("queue") == 0
    assert shop.notes() == ["xx", "xx"]


@inline
@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_what_the_database_asks_to_run_again_is_bounded_and_then_charged(
    shop: Shop, state: str
) -> None:
    billing = shop.consumer()
    runs = 0

    @shop.handler(billing)
    async def unlucky(call: Call) -> None:
        nonlocal runs
        runs += 1
        await call.db.effect(call.message.id)
        await call.db.run(f"DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '{state}'; END $$")

    outcome = await shop.deliver(billing, event())
    assert outcome.status is Status.RETRY
    assert runs == 11
    assert len(shop.attempts("evt-1")) == 1
    assert not shop.effects()
