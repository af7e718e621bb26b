"""Behind a real broker: oncebox, and the bare loop that everybody writes first, with the same client.

The messages of a slice are in the broker before the clock starts; it stops when the last one is acked.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import asyncpg
import psycopg

from benchmarks.contenders.base import UPDATE_ASYNCPG, UPDATE_PSYCOPG, Contender, ContenderEnded
from benchmarks.contenders.library import Library
from benchmarks.load import decode
from benchmarks.stage import Place
from oncebox import App, Consumer, Message
from oncebox.brokers.contract import Delivery, Source
from tests.servers.process import Unavailable

_numbers = itertools.count(1)

Effect = Callable[[bytes], Any]
"""One transaction for one message's body; awaited where the client is."""


class Bare(Protocol):
    """A client's own loop over a queue."""

    async def open(self) -> None:
        """Connect and subscribe."""

    async def work(self, count: int, effect: Effect) -> None:
        """Receive `count` messages; for each of them the effect, then the ack."""

    async def close(self) -> None:
        """Disconnect."""


class Broker(Protocol):
    """A private server, shared by both sides of a comparison."""

    label: str

    def enter(self) -> None:
        """Start it, unless it runs. `Unavailable` when it can't be."""

    def leave(self) -> None:
        """End it, when nobody else uses it."""

    async def make(self, name: str) -> None:
        """A new queue, empty."""

    async def put(self, name: str, messages: Sequence[Message]) -> None:
        """Return when the broker has them all."""

    def source(self, name: str) -> Source:
        """The queue as a source of oncebox."""

    def bare(self, name: str) -> Bare:
        """The queue for the client alone."""


class BareLoop(Contender):
    """Receive, one transaction with the effect, ack; one message after the other, no deduplication."""

    def __init__(self, broker: Broker, driver: str) -> None:
        super().__init__(driver)
        self.label = f"bare loop, {broker.label}"
        self._broker = broker
        self._kind = driver

    async def open(self, stage: Place) -> None:
        self._name = await _queue(self._broker)
        self._bare = self._broker.bare(self._name)
        await self._bare.open()
        if self._kind == "asyncpg":
            self._conn: Any = await asyncpg.connect(stage.url)
        else:
            self._conn = psycopg.connect(stage.url, prepare_threshold=1)

    async def run(self, messages: Sequence[Message]) -> float:
        await self._broker.put(self._name, messages)
        started = time.perf_counter()
        await self._bare.work(
            len(messages), self._awaited_effect if self._kind == "asyncpg" else self._effect
        )
        return time.perf_counter() - started

    async def _awaited_effect(self, body: bytes) -> None:
        payment = decode(body)
        await self._conn.execute("BEGIN")
        assert await self._conn.execute(UPDATE_ASYNCPG, payment.amount, payment.account) == "UPDATE 1"
        await self._conn.execute("COMMIT")

    def _effect(self, body: bytes) -> None:
        payment = decode(body)
        assert self._conn.execute(UPDATE_PSYCOPG, (payment.amount, payment.account)).rowcount == 1
        self._conn.commit()

    async def close(self) -> None:
        await self._bare.close()
        closing = self._conn.close()
        if closing is not None:
            await closing
        self._broker.leave()


class Behind(Library):
    """`app.running()` with the broker's source, which gives nothing while a slice is being put in."""

    def __init__(self, broker: Broker, driver: str, **policy: Any) -> None:
        super().__init__(f"{broker.label}, batch={policy.get('batch', 1)}", driver, **policy)
        self._broker = broker

    async def open(self, stage: Place) -> None:
        self._name = await _queue(self._broker)
        self._gate = Gate(self._broker.source(self._name))
        await super().open(stage)

    def consumer_of(self, app: App, **words: Any) -> Consumer:
        """The broker's queue instead of one in the process."""
        return app.consumer(f"bench-{next(_numbers)}", self._gate, **words)

    async def run(self, messages: Sequence[Message]) -> float:
        self._gate.shut(len(messages))
        await self._broker.put(self._name, messages)
        started = time.perf_counter()
        await self._gate.passed()
        return time.perf_counter() - started

    async def close(self) -> None:
        await super().close()
        self._broker.leave()


class Gate:
    """A source that can be held back, and that counts its acks; all else is the source's own."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._open = asyncio.Event()
        self._missing = 0
        self._done = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def shut(self, count: int) -> None:
        """Give nothing until `passed`, which waits for `count` acks."""
        self._missing = count
        self._done.clear()
        self._open.clear()

    async def passed(self) -> None:
        """Let everything through, and wait until it is acked."""
        self._open.set()
        await self._done.wait()

    async def receive(self, limit: int) -> list[Delivery]:
        """See `Source.receive`."""
        await self._open.wait()
        received = await self._source.receive(limit)
        await self._open.wait()  # it may have been shut meanwhile
        return received

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.ack`."""
        await self._source.ack(deliveries)
        self._missing -= len(deliveries)
        if self._missing <= 0:
            self._done.set()


async def _queue(broker: Broker) -> str:
    try:
        broker.enter()
    except Unavailable as reason:
        raise ContenderEnded(str(reason)) from None
    name = f"bench-{next(_numbers)}"
    await broker.make(name)
    return name
