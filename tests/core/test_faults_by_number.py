"""A fault before or after any step, by its number: delivered again, a message has taken effect once."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oncebox import Consumer, Status
from oncebox.core.inline import stream
from oncebox.core.receiving import receive
from oncebox.core.run import Perform
from oncebox.core.steps import Op, Settle
from oncebox.core.stored import work_batch
from oncebox.core.work import Item, Work
from oncebox.errors import DatabaseUnavailable
from tests.core.kit import Shop, effect, event
from tests.core.stepping import Numbered, raising

STEPS_MAX = 30
FAULTS = pytest.mark.parametrize(
    "error", [DatabaseUnavailable("gone"), asyncio.CancelledError()], ids=["lost database", "cancellation"]
)
Flow = Callable[[Work], Op[Any]]


async def interrupted(
    shop: Shop, consumer: Consumer, flow: Flow, number: int, *, after: bool, error: BaseException
) -> Numbered | None:
    """Run the flow with a fault at this step. What it did, or None when it has no such step."""
    made: list[Numbered] = []

    def through(perform: Perform) -> Perform:
        hooks = {number: raising(error)}
        made.append(Numbered(perform, before={} if after else hooks, after=hooks if after else {}))
        return made[-1]

    try:
        await shop.perform(consumer, flow, through=through)
    except type(error):
        assert len(made[0].steps) >= number
        return made[0]
    # A step whose failure changes nothing, such as taking a marker back, may be survived.
    return made[0] if len(made[0].steps) >= number else None


def delivery(shop: Shop, consumer: Consumer, identity: str) -> Flow:
    item: Item = consumer.intake.from_message(event(identity))
    if shop.mode == "inline":
        return lambda work: stream(work, item)
    return lambda work: receive(work, [item])


@FAULTS
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_fault_at_any_step_of_a_delivery_costs_at_most_a_redelivery(
    shop: Shop, after: bool, error: BaseException
) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    numbers = 0
    for number in range(1, STEPS_MAX):
        identity = f"evt-{number}"
        reached = await interrupted(
            shop, billing, delivery(shop, billing, identity), number, after=after, error=error
        )
        if any(isinstance(step, Settle) for step in reached.steps[: number - 1]) if reached else True:
            known = await shop.deliver(billing, event(identity))
            assert known.status in (Status.DUPLICATE, Status.WAITING), "it was acked, so it must be known"
        else:
            await shop.deliver(billing, event(identity))
        if shop.mode == "stored":
            await shop.work_off(billing)
        assert shop.effects()[identity] == 1, (number, reached)
        assert shop.attempts(identity) == [], "nobody is charged"
        if reached is None:
            break
        numbers += 1
    assert numbers >= 2, "storing takes two steps at least, handling more"
    assert set(shop.effects().values()) == {1}


@FAULTS
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("mode", ["stored"], indirect=True)
async def test_a_fault_at_any_step_of_a_workers_turn_costs_at_most_another_turn(
    shop: Shop, after: bool, error: BaseException
) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    for number in range(1, STEPS_MAX):
        identity = f"evt-{number}"
        await shop.deliver(billing, event(identity))
        reached = await interrupted(shop, billing, work_batch, number, after=after, error=error)
        await shop.work_off(billing)
        assert shop.effects()[identity] == 1, (number, reached)
        assert shop.attempts(identity) == [], "nobody is charged"
        assert shop.count("queue") == 0
        if reached is None:
            break
    assert number > 4
    assert set(shop.effects().values()) == {1}
