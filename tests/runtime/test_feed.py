"""How many deliveries a feed lets be out: more where they are handled fast."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from oncebox.brokers.memory import Memory
from oncebox.core.outcomes import DONE
from oncebox.core.work import Item
from oncebox.message import Message
from oncebox.policy import Policy
from oncebox.runtime.feed import FAST_SECONDS, FAST_TIMES, LOOK_SECONDS, Feed
from oncebox.runtime.intake import Intake
from oncebox.runtime.registry import Registry
from oncebox.runtime.tallies import Tallies
from tests.waiting import eventually_async

LEAST = 8
MANY = LEAST * FAST_TIMES


class Ticking:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Line:
    """A feed that receives as much as it may, and one who handles it at the test's pace."""

    def __init__(self, *, pushes: bool = False, batch: int = 1) -> None:
        self.memory = Memory()
        self.source = self.memory.queue("payments")
        vars(self.source)["pushes"] = pushes
        self.clock = Ticking()
        intake = Intake("billing", Policy(batch=batch), Registry("billing"), None, None)
        self.feed = Feed(self.source, intake, LEAST, 1, self.clock)
        self.items: list[Item] = []
        self.sent = 0

    def send(self, count: int) -> None:
        """So many more are in the broker's queue."""
        self.memory.put("payments", *(Message(id=f"m{self.sent + n}", type="paid") for n in range(count)))
        self.sent += count

    async def full(self, count: int) -> None:
        """As many are out as may be: exactly so many."""
        await eventually_async(lambda: len(self.items) >= count)
        await asyncio.sleep(0)
        assert len(self.items) == len(self.feed.outstanding) == self.feed.most == count

    async def handle(self, count: int, seconds: float) -> None:
        """So many of those that are out, in that time."""
        done, self.items[:] = self.items[:count], self.items[count:]
        assert len(done) == count
        for item in done:
            item.outcome = DONE
        self.feed.settle(done)
        self.clock.now += seconds
        await self.feed.answer_settled(Tallies())

    async def hurry(self) -> None:
        """Handle what is out so fast that more may be."""
        while self.feed.most == LEAST:
            await self.full(LEAST)
            await self.handle(LEAST, FAST_SECONDS)


@asynccontextmanager
async def line_of(count: int, **words: Any) -> AsyncIterator[Line]:
    line = Line(**words)
    line.send(count)
    await line.source.open()
    receiving = asyncio.create_task(line.feed.receive(line.items.extend))
    try:
        yield line
    finally:
        receiving.cancel()
        with suppress(asyncio.CancelledError):
            await receiving
        await line.source.close()


async def test_where_they_are_handled_fast_more_are_out() -> None:
    async with line_of(1000) as line:
        await line.full(LEAST)
        await line.handle(LEAST, FAST_SECONDS)
        await line.full(LEAST)  # too early to tell
        await line.handle(LEAST, FAST_SECONDS)
        await line.full(MANY)


async def test_where_they_are_handled_slowly_there_are_no_more_than_at_first() -> None:
    async with line_of(1000) as line:
        for _ in range(5):
            await line.full(LEAST)
            await line.handle(LEAST, LOOK_SECONDS)


@pytest.mark.parametrize("words", [{"pushes": True}, {"batch": 100}], ids=str)
async def test_a_broker_that_sends_by_itself_is_always_asked_for_the_same_and_so_is_one_of_batches(
    words: dict[str, Any],
) -> None:
    async with line_of(1000, **words) as line:
        for _ in range(5):
            await line.full(LEAST)
            await line.handle(LEAST, FAST_SECONDS)


async def test_handlers_that_get_slow_are_left_with_few() -> None:
    async with line_of(1000) as line:
        await line.hurry()
        await line.full(MANY)
        await line.handle(1, LOOK_SECONDS)
        assert line.feed.most == LEAST
        await line.handle(MANY - 1, 1.0)
        await line.full(LEAST)


async def test_what_the_queue_has_meanwhile_does_not_put_off_the_next_look() -> None:
    async with line_of(2 * LEAST) as line:
        await line.hurry()
        await eventually_async(lambda: not line.feed.outstanding)
        for _ in range(3):
            line.items.append(Item(Message(id="from the queue"), b""))
            await line.handle(1, 3600.0)
        line.send(1000)
        await line.full(MANY)
        await line.handle(1, 2 * LOOK_SECONDS)
        assert line.feed.most == LEAST


async def test_a_broker_that_has_nothing_for_a_while_makes_nobody_slow() -> None:
    async with line_of(3 * LEAST + MANY) as line:
        await line.hurry()
        await eventually_async(lambda: line.feed.outstanding)
        while line.items:
            await line.handle(1, LOOK_SECONDS / MANY)
        assert line.feed.most == MANY
        line.clock.now += 3600.0
        line.send(1000)
        await line.full(MANY)
        await line.handle(MANY, FAST_SECONDS)
        await line.full(MANY)
