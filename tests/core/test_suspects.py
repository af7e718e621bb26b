"""Inline, what came before may have killed its process: who runs it, and when, while deaths are being counted."""

import asyncio
from functools import partial
from typing import Any

import pytest

from oncebox import Consumer, Status
from oncebox.core.inline import stream
from oncebox.core.reap import reap_lapsed
from oncebox.core.run import Perform
from oncebox.core.steps import Side, Step
from oncebox.core.work import Item
from oncebox.errors import DatabaseUnavailable
from tests.core.deaths import beating, killed_at_handle
from tests.core.fixtures import inline
from tests.core.kit import Shop, effect, event

pytestmark = inline


async def die_with(shop: Shop, consumer: Consumer, item: Item, slot: int) -> None:
    """Leave what a killed worker leaves that had a suspect in hand."""
    await shop.perform(consumer, beating, slot=slot)
    with pytest.raises(DatabaseUnavailable):
        await shop.perform(consumer, partial(stream, item=item), slot=slot, through=killed_at_handle)


async def reap(shop: Shop, consumer: Consumer) -> int:
    return await shop.perform(consumer, lambda work: reap_lapsed(work, -1.0), slot=2)


def suspect(consumer: Consumer, deliveries: int) -> Item:
    return consumer.intake.from_message(event(deliveries=deliveries))


async def test_who_has_read_too_few_deaths_does_not_run_it_beside_others(shop: Shop) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    await die_with(shop, billing, suspect(billing, 2), slot=7)
    loop = asyncio.get_running_loop()
    reaped: list[int] = []

    def late(perform: Perform) -> Perform:
        """The death is counted after the worker has read how many there are, and before it says what it will run."""

        def blocking(step: Step) -> Any:
            if isinstance(step, Side) and step.call.query.name == "mark_inline":
                reaped.append(asyncio.run_coroutine_threadsafe(reap(shop, billing), loop).result(30))
            return perform(step)

        async def waiting(step: Step) -> Any:
            if isinstance(step, Side) and step.call.query.name == "mark_inline":
                reaped.append(await reap(shop, billing))
            reply = perform(step)
            return await reply if asyncio.iscoroutine(reply) else reply

        return waiting if shop.kind.is_async else blocking

    one = suspect(billing, 3)
    await shop.perform(billing, partial(stream, item=one), through=late)

    assert reaped == [1]
    assert one.outcome is not None
    assert one.outcome.status is Status.IN_FLIGHT
    assert not shop.effects()
    in_hand = f"SELECT message_id FROM {shop.table('hand')} WHERE message_id IS NOT NULL"
    assert shop.rows(in_hand) == [], "no death can be counted against it"
    assert (await shop.deliver(billing, event(deliveries=4))).status is Status.PROCESSED
    assert shop.work_of(billing).alone.enter(object()), "it was alone, and has left"
