"""Handlers that let out what is no Exception, and brokers that are slow when the app stops."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from oncebox import Backoff
from oncebox.brokers.contract import Delivery
from oncebox.brokers.memory import Memory
from oncebox.core.batch import keep
from tests.core.fixtures import on
from tests.core.flows import Handled, item
from tests.core.kit import Call, Shop, effect, event
from tests.waiting import eventually_async


class Gone(BaseException):
    """Not an Exception, as pytest.fail's or another event loop's own."""


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("error", [Gone("away"), asyncio.CancelledError()])
@on("sqlite", "psycopg", "sqlite-async", "asyncpg")
async def test_what_is_no_exception_ends_its_message_and_neither_its_worker_nor_its_neighbours(
    shop: Shop, error: BaseException, batch: int
) -> None:
    memory = Memory()
    billing = shop.consumer(
        "billing", memory.queue("q"), retry=Backoff(attempts=1), batch=batch, concurrency=1
    )

    @shop.handler(billing)
    async def unruly(call: Call) -> None:
        await call.db.effect(call.message.id)
        if call.message.id == "bad":
            raise error

    memory.put("q", event("a"), event("bad"), *(event(f"b{n}") for n in range(4)))
    async with shop.app.running():
        await eventually_async(lambda: len(shop.dead()) == 1 and len(shop.effects()) == 5, 60)
        async with asyncio.timeout(30):
            await memory.drained()
    assert shop.effects() == {"a": 1, "b0": 1, "b1": 1, "b2": 1, "b3": 1}
    assert [attempt[2] for attempt in shop.attempts("bad")] == ["oncebox.errors.HandlerExit"]


class Slow:
    """A source behind a slow network: an ack is begun, and goes on when it is let."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        self.begun.set()
        await self.go_on.wait()
        await self.inner.ack(deliveries)


@on("sqlite-async")
async def test_stopping_lets_answers_that_are_under_way_arrive(shop: Shop) -> None:
    memory = Memory()
    source = Slow(memory.queue("q"))
    shop.handler(shop.consumer("billing", source))(effect)
    memory.put("q", event("a"))
    async with shop.app.running():
        await source.begun.wait()
        asyncio.get_running_loop().call_later(0.2, source.go_on.set)
    assert (memory.stats()["q"].acked, memory.stats()["q"].released) == (1, 0)


@on("sqlite-async")
async def test_answers_that_never_arrive_are_given_back_when_the_app_stops(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncebox.runtime.running.ANSWER_SECONDS", 0.05)
    memory = Memory()
    source = Slow(memory.queue("q"))
    shop.handler(shop.consumer("billing", source))(effect)
    memory.put("q", event("a"))
    async with shop.app.running():
        await source.begun.wait()
    assert (memory.stats()["q"].acked, memory.stats()["q"].released) == (0, 1)


def test_nothing_of_a_run_that_was_undone_is_kept() -> None:
    unit = (item("a", handler=Handled("many", batch=True)), item("b", handler=Handled("many", batch=True)))
    keep(unit, [1, 2])
    keep(unit, None)
    assert [one.result for one in unit] == [None, None]
