"""`durability="group"` at work: lazily committed, flushed and vouched for before any ack."""

import asyncio
from functools import partial
from typing import Any

import pytest

from oncebox import Backoff, Dead
from oncebox.brokers.memory import Memory
from oncebox.core.inline import stream
from oncebox.core.run import Perform
from oncebox.core.steps import Flush, Settle, Step
from oncebox.errors import DatabaseUnavailable
from tests.core.fixtures import inline
from tests.core.kit import Call, Shop, effect, event
from tests.core.stepping import Numbered

pytestmark = inline
PATIENCE_SECONDS = 30.0


async def test_a_group_takes_every_message_once_and_acks_all(shop: Shop) -> None:
    memory = Memory()
    billing = shop.consumer(
        "billing", memory.queue("payments"), durability="group", retry=Backoff(attempts=1)
    )

    @shop.handler(billing)
    async def sometimes(call: Call) -> str:
        await call.db.effect(call.message.id)
        if call.message.id == "bad":
            raise Dead("fraud")
        return str(call.message.id)

    memory.put("payments", event("bad"), *(event(f"evt-{n}") for n in range(150)), duplicates=1)
    async with shop.app.running():
        async with asyncio.timeout(PATIENCE_SECONDS):
            await memory.drained()

    assert shop.effects() == {f"evt-{n}": 1 for n in range(150)}
    assert [identity for identity, *_ in shop.dead()] == ["bad"]
    assert memory.stats()["payments"].acked == 302
    assert (await shop.deliver(billing, event("evt-7"))).result == "evt-7"


async def test_one_message_is_flushed_before_it_is_settled(shop: Shop) -> None:
    billing = shop.consumer(durability="group")
    shop.handler(billing)(effect)
    made: list[Numbered] = []

    def through(perform: Perform) -> Perform:
        made.append(Numbered(perform))
        return made[-1]

    for _ in range(2):  # the first delivery and its duplicate alike
        item = billing.intake.from_message(event())
        await shop.perform(billing, partial(stream, item=item), through=through)
        kinds = [type(step) for step in made[-1].steps]
        assert kinds.index(Flush) < kinds.index(Settle)
    assert shop.rows(f"SELECT count(*) FROM {shop.table('ledger')} WHERE lazy") == [(1,)]


async def test_a_row_that_is_gone_when_it_is_vouched_for_acks_nothing(shop: Shop) -> None:
    billing = shop.consumer(durability="group")
    shop.handler(billing)(effect)
    settled: list[Any] = []
    item = billing.intake.from_message(event())

    def through(perform: Perform) -> Perform:
        def performing(step: Step) -> Any:
            if isinstance(step, Flush):
                # As after a crash of the server: what was not on disk is not there.
                shop.rows(f"DELETE FROM {shop.table('ledger')}")
            return perform(step)

        return performing

    with pytest.raises(DatabaseUnavailable, match="nothing of this group is acked"):
        await shop.perform(billing, lambda work: stream(work, item), settled=settled, through=through)
    assert settled == []
