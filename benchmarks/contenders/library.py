"""The whole library: an app that runs, with a source, workers, acks, heartbeat and tallies."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import psycopg

from benchmarks.contenders.base import UPDATE_ASYNCPG, UPDATE_PSYCOPG, Contender
from benchmarks.load import TYPE, Load, Payment
from benchmarks.stage import Place
from oncebox import App, Backoff, Consumer, Message
from oncebox.brokers.memory import Memory

SCHEMES = {"psycopg": "postgresql", "psycopg-async": "postgresql", "asyncpg": "postgresql+asyncpg"}
LOOK_SECONDS = 0.001
NEARLY = 0.98
"""From here on the queue is looked at: workers may lose a count to each other, and duplicates run no handler."""
NEVER = 1 << 60
SLICE_BYTES_MAX = 40_000_000
_numbers = itertools.count(1)

SET_ASYNCPG = """
UPDATE account a SET balance = a.balance + p.amount
FROM (SELECT id, sum(amount) AS amount FROM unnest($1::int[], $2::int[]) AS p(id, amount) GROUP BY id) p
WHERE a.id = p.id
"""
SET_PSYCOPG = SET_ASYNCPG.replace("$1", "%s").replace("$2", "%s")


class Library(Contender):
    """`app.running()` over the in-process broker. A slice is put into its queue before the clock
    starts, and is over when the broker has every ack (stored: when nothing is left to do)."""

    def __init__(
        self,
        label: str,
        driver: str,
        concurrency: int = 1,
        load: Load | None = None,
        *,
        set_based: bool = False,
        schema: str = "oncebox",
        **policy: Any,
    ) -> None:
        super().__init__(driver, concurrency, load)
        self.schema = schema
        self.label = label
        self.kind = driver
        self.set_based = set_based
        self.policy = policy
        self.handled = 0
        self.nearly = NEVER
        self.soon_done = asyncio.Event()
        self.stored = policy.get("mode") == "stored"
        # A batch of the last few is no batch: slices hold several whole ones for every worker.
        whole = max(20, 4 * policy.get("batch", 1) * concurrency)
        self.count_min = max(1, min(whole, SLICE_BYTES_MAX // self.load.payload_bytes))

    def app(self, stage: Place) -> App:
        """The app as a user makes it."""
        return App(f"{SCHEMES[self.kind]}://{stage.url.split('://', 1)[1]}", schema=self.schema)

    async def open(self, stage: Place) -> None:
        self.stage = stage
        self.loop = asyncio.get_running_loop()
        self.broker = Memory()
        self.queue = f"payments-{next(_numbers)}"
        app = self.app(stage)
        # What is meant to fail is dead at once; nothing else ever runs out of attempts here.
        retry = Backoff(attempts=1) if self.load.failing_every else Backoff()
        self.consumer: Consumer = self.consumer_of(
            app, concurrency=self.concurrency, retry=retry, **self.policy
        )
        self.register(self.consumer)
        self._stack = AsyncExitStack()
        self.running = await self._stack.enter_async_context(app.running())

    def consumer_of(self, app: App, **words: Any) -> Consumer:
        """The consumer, with the source that it is measured with."""
        return app.consumer(f"bench-{next(_numbers)}", self.broker.queue(self.queue), **words)

    def register(self, consumer: Consumer) -> None:
        """The handler, for this driver."""
        register = consumer.batch_handler(TYPE) if self.set_based else consumer.handler(TYPE)
        register(HANDLERS[self.kind, self.set_based](self.count))

    def count(self, handled: int) -> None:
        """A handler has run. One worker at a time may lose a count to another: only a hint."""
        self.handled += handled
        if self.handled >= self.nearly:
            self.nearly = NEVER
            self.loop.call_soon_threadsafe(self.soon_done.set)

    async def prime(self) -> None:
        if self.load.duplicates:
            await self.run(self.load.fresh(2000))

    async def run(self, messages: Sequence[Message]) -> float:
        self.handled = 0
        self.soon_done.clear()
        self.nearly = int(len(messages) * NEARLY) if self.stored else NEVER
        self.broker.put(self.queue, *messages)
        started = time.perf_counter()
        await self.broker.drained(self.queue)
        if self.stored:
            await self._worked_off()
        return time.perf_counter() - started

    async def _worked_off(self) -> None:
        # Handlers first: to look all the time, or to ask the database, would slow down what is measured.
        await self.soon_done.wait()
        while not self.stage.is_queue_empty():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        await self._stack.aclose()


Count = Callable[[int], None]


def psycopg_handler(count: Count) -> Any:
    """One message, blocking."""

    def captured(payment: Payment, conn: psycopg.Connection[Any]) -> None:
        if not payment.amount:
            raise ValueError("this account is closed")
        assert conn.execute(UPDATE_PSYCOPG, (payment.amount, payment.account)).rowcount == 1
        count(1)

    return captured


def psycopg_async_handler(count: Count) -> Any:
    """One message, awaiting psycopg."""

    async def captured(payment: Payment, conn: psycopg.AsyncConnection[Any]) -> None:
        if not payment.amount:
            raise ValueError("this account is closed")
        cursor = await conn.execute(UPDATE_PSYCOPG, (payment.amount, payment.account))
        assert cursor.rowcount == 1
        count(1)

    return captured


def asyncpg_handler(count: Count) -> Any:
    """One message, awaiting."""

    async def captured(payment: Payment, conn: asyncpg.Connection) -> None:
        if not payment.amount:
            raise ValueError("this account is closed")
        assert await conn.execute(UPDATE_ASYNCPG, payment.amount, payment.account) == "UPDATE 1"
        count(1)

    return captured


def psycopg_set_handler(count: Count) -> Any:
    """A whole batch in one statement, blocking."""

    def captured(payments: list[Payment], conn: psycopg.Connection[Any]) -> None:
        accounts = [payment.account for payment in payments]
        changed = conn.execute(SET_PSYCOPG, (accounts, [payment.amount for payment in payments])).rowcount
        assert changed == len(set(accounts))
        count(len(payments))

    return captured


def asyncpg_set_handler(count: Count) -> Any:
    """A whole batch in one statement, awaiting."""

    async def captured(payments: list[Payment], conn: asyncpg.Connection) -> None:
        accounts = [payment.account for payment in payments]
        tag = await conn.execute(SET_ASYNCPG, accounts, [payment.amount for payment in payments])
        assert tag == f"UPDATE {len(set(accounts))}"
        count(len(payments))

    return captured


HANDLERS: dict[tuple[str, bool], Callable[[Count], Any]] = {
    ("psycopg", False): psycopg_handler,
    ("psycopg", True): psycopg_set_handler,
    ("psycopg-async", False): psycopg_async_handler,
    ("asyncpg", False): asyncpg_handler,
    ("asyncpg", True): asyncpg_set_handler,
}
