"""Stored mode's front door: what is stored first is first in its line."""

from collections.abc import Sequence

import pytest

from oncebox.brokers.memory import Memory
from oncebox.core import receiving
from oncebox.core.steps import Op
from oncebox.core.work import Item, Work
from oncebox.runtime.receiver import STORE_MAX
from tests.core.fixtures import on, stored
from tests.core.kit import Shop, effect, event
from tests.waiting import eventually_async

QUEUE = "payments"


@stored
@on("asyncpg", "psycopg")
async def test_what_could_not_be_stored_comes_before_what_came_after_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory()
    shop.handler(shop.consumer("billing", memory.queue(QUEUE)))(effect)
    asked: list[list[str]] = []

    def contested(work: Work, items: Sequence[Item]) -> Op[list[Item]]:
        """The first time, somebody decides about their rows."""
        asked.append([item.message.id for item in items])
        if len(asked) == 1:
            return list(items)
        return (yield from receiving.receive(work, items))

    monkeypatch.setattr("oncebox.runtime.receiver.receive", contested)
    sent = [f"evt-{n}" for n in range(STORE_MAX + 50)]
    memory.put(QUEUE, *map(event, sent))
    async with shop.app.running(only=("sources",)):
        await eventually_async(lambda: memory.stats()[QUEUE].acked == len(sent))
    assert asked[1][: len(asked[0])] == asked[0]
    assert [name for names in asked[1:] for name in names] == sent
