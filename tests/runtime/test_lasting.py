"""What runs for as long as its app does is not ended by an error that nobody foresaw, nor by a client library's
CancelledError: it would be quiet about it, and look like a source without messages."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from oncebox.brokers.contract import Delivery
from oncebox.brokers.memory import Memory
from oncebox.message import Message
from oncebox.runtime import running
from oncebox.runtime.lasting import lasting
from tests.core.fixtures import inline, on
from tests.core.kit import Call, Shop, effect, event
from tests.outgoing.kit import put_slots_back
from tests.waiting import eventually_async

GIVEN_UP = [asyncio.CancelledError(), KeyError("a mistake in a broker's client")]


@pytest.mark.parametrize("error", GIVEN_UP, ids=["cancelled", "mistake"])
@on("sqlite-async", "psycopg")
async def test_a_source_that_gives_a_receive_up_is_received_from_again(
    shop: Shop, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory()
    queue = memory.queue("payments")
    shop.handler(shop.consumer("billing", queue))(effect)
    receiving, troubles = queue.receive, [error, error]

    async def receive(limit: int) -> list[Delivery]:
        if troubles:
            raise troubles.pop()
        return await receiving(limit)

    monkeypatch.setattr(queue, "receive", receive)
    async with shop.app.running():
        memory.put("payments", event())
        await eventually_async(lambda: shop.effects() == {"evt-1": 1}, 30)
    assert not troubles


@pytest.mark.parametrize("error", GIVEN_UP, ids=["cancelled", "mistake"])
@inline
@on("sqlite-async")
async def test_a_source_that_gives_an_answer_up_is_answered_again(
    shop: Shop, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory()
    queue = memory.queue("payments")
    shop.handler(shop.consumer("billing", queue))(effect)
    acking, troubles, acked = queue.ack, [error], list[Any]()

    async def ack(deliveries: Sequence[Delivery]) -> None:
        if troubles:
            raise troubles.pop()
        acked.extend(deliveries)
        await acking(deliveries)

    monkeypatch.setattr(queue, "ack", ack)
    async with shop.app.running():
        memory.put("payments", event())
        await eventually_async(lambda: not troubles, 30)
        memory.put("payments", event(id="evt-2"))
        await eventually_async(lambda: acked, 30)
    assert shop.effects() == {"evt-1": 1, "evt-2": 1}


class GivesUp:
    """A sink whose client gives up what waits, once."""

    name = "events"

    def __init__(self) -> None:
        self.errors: list[BaseException] = [asyncio.CancelledError()]
        self.taken: list[str] = []

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def publish(self, messages: Sequence[Message]) -> list[BaseException | None]:
        if self.errors:
            raise self.errors.pop()
        self.taken += [message.type for message in messages]
        return [None] * len(messages)


@on("sqlite-async", "psycopg")
async def test_a_sink_that_gives_up_what_is_on_its_way_is_sent_it_again(shop_url: str, kind: str) -> None:
    sink = GivesUp()
    shop = Shop(kind, shop_url, sink=sink)
    put_slots_back(shop)
    memory = Memory()

    async def publishing(call: Call) -> None:
        call.tx.publish("receipt", {"n": 1})

    shop.handler(shop.consumer("billing", memory.queue("payments")))(publishing)
    try:
        async with shop.app.running():
            memory.put("payments", event())
            await eventually_async(lambda: sink.taken == ["receipt"], 30)
            # Only now: a relay that is stopped before it has marked what was taken would send it again.
            await eventually_async(lambda: shop.count("outbox") == 0, 30)
        assert sink.taken == ["receipt"]
    finally:
        await shop.close()


async def test_an_end_that_nobody_asked_for_is_told(caplog: pytest.LogCaptureFixture) -> None:
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise RuntimeError("unforeseen")

    with caplog.at_level(logging.ERROR, "oncebox"):
        await asyncio.wait_for(lasting("the watch", run), 30)
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "the watch ended, though nobody asked it to"
    ] * 2


async def test_being_asked_to_end_ends_it() -> None:
    began = asyncio.Event()

    async def run() -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(lasting("the watch", run))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)


async def test_task_that_takes_its_cancellation_for_a_failure_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "CANCEL_SECONDS", 0.01)
    began = asyncio.Event()

    async def stubborn() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    task = asyncio.create_task(stubborn())
    await began.wait()
    async with asyncio.timeout(30):
        await running.cancel([task])
    assert task.cancelled()


async def test_failure_of_what_was_asked_to_end_is_no_new_beginning() -> None:
    began: list[int] = []

    async def fails_when_cancelled() -> None:
        began.append(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("the connection was closed under it") from None

    task = asyncio.create_task(lasting("it", fails_when_cancelled))
    await asyncio.sleep(0)
    await running.cancel([task])
    assert len(began) == 1
    assert isinstance(task.exception(), RuntimeError)
