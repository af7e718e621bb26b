"""The brokers that pass the suite, each on a bench of its own."""

import asyncio
from typing import Self

from oncebox.brokers.contract import Delivery, Source
from oncebox.brokers.memory import Memory, MemorySource
from oncebox.brokers.remote import RemoteMemory, RemoteSource
from oncebox.clock import FakeClock
from oncebox.message import Message
from tests.brokers.suite import VISIBILITY_SECONDS, Bench

QUEUE = "payments"


class MemoryBench(Bench):
    """`Memory`, in this process, with a clock that the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.memory = Memory(clock=self.clock)
        self.memory.queue(QUEUE, visibility_seconds=VISIBILITY_SECONDS)

    def make_source(self) -> Source:
        return self.memory.queue(QUEUE)

    async def publish(self, *messages: Message | Delivery, duplicates: int = 0) -> None:
        await self.memory.publish(QUEUE, *messages, duplicates=duplicates)

    async def pass_seconds(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def now(self) -> float:
        return self.clock.monotonic()

    async def heard(self, source: Source) -> None:
        await asyncio.sleep(0)

    async def lose(self, source: Source) -> None:
        assert isinstance(source, MemorySource)
        source.drop()


class RemoteBench(MemoryBench):
    """The same `Memory`, served on a socket and used through it."""

    remote: RemoteMemory

    async def __aenter__(self) -> Self:
        address = await self.stack.enter_async_context(self.memory.serve())
        self.remote = await self.stack.enter_async_context(RemoteMemory(address))
        return self

    def make_source(self) -> Source:
        return self.remote.queue(QUEUE)

    async def publish(self, *messages: Message | Delivery, duplicates: int = 0) -> None:
        await self.remote.publish(QUEUE, *messages, duplicates=duplicates)

    async def heard(self, source: Source) -> None:
        assert isinstance(source, RemoteSource)
        await source.flush()

    async def lose(self, source: Source) -> None:
        assert isinstance(source, RemoteSource)
        source.drop()
