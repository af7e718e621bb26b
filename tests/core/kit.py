"""`Shop`: an app on one kind of driver, with an append-only table of effects that tells once from twice.

`deliver` is what a broker does; `settle` goes on until a handler has had its say, in either mode.
"""

import asyncio
import atexit
import functools
import random
import shutil
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psycopg

from oncebox import App, Consumer, Message, Outcome, Tx
from oncebox.brokers.contract import Source
from oncebox.core.leased import work_long
from oncebox.core.receiving import receive
from oncebox.core.run import Perform, run, run_async
from oncebox.core.steps import Op
from oncebox.core.stored import work_batch
from oncebox.core.work import Item, Work
from oncebox.runtime.mailbox import Mailbox, ThreadMailbox
from oncebox.runtime.performer import Performer
from oncebox.runtime.schema import migrate
from oncebox.runtime.workers import inline_turn
from tests.core.bodies import PATIENCE_SECONDS, Body, Call, Gate, effect, event
from tests.core.drivers import KINDS, Db, Kind, at_once

__all__ = ["Call", "Shop", "effect", "event"]

T = TypeVar("T")
THREADS = 64

EFFECT = "CREATE TABLE shop_effect (key TEXT NOT NULL, note TEXT NOT NULL)"
NUMBERED = EFFECT.removesuffix(")") + ", n BIGINT GENERATED ALWAYS AS IDENTITY)"
"""Where a row lies says nothing about its age once a vacuum has been there."""


Through = Callable[[Perform], Perform]


class _Later(random.Random):
    """Full jitter may say "at once": what failed would be due again before a test has looked at it."""

    def uniform(self, a: float, b: float) -> float:
        return 100 * b


class Shop:
    """An app, its consumers, and what can be seen from outside. Close it."""

    def __init__(self, kind: str, url: str, mode: str = "inline", *, seen: str = "", **app: Any) -> None:
        """`seen` is where the observer looks, when the app goes another way."""
        self.kind: Kind = KINDS[kind]
        self.mode = mode
        self.app = App(f"{self.kind.scheme}://{url.split('://', 1)[1]}", **app)
        self._pool = ThreadPoolExecutor(THREADS)
        self._works: dict[tuple[str, int], Work] = {}
        self._seen: Any = None
        self.closed = False
        self._url = seen or url
        if self.kind.engine == "sqlite" and not _path(url).exists():
            shutil.copyfile(_pattern(), _path(url))
        if not self.rows(f"SELECT 1 FROM {_catalogue(self.kind)} = 'shop_effect'"):
            migrate(self.app.database if self.app.database.serves_sync else App(url, **app).database)
            self.rows(EFFECT if self.kind.engine == "sqlite" else NUMBERED)

    async def close(self) -> None:
        """Let go of every connection."""
        self.closed = True
        await self.app.aclose()
        self._pool.shutdown()
        if self._seen is not None:
            self._seen.close()

    # Setting up

    def consumer(self, name: str = "billing", source: Source | None = None, **policy: Any) -> Consumer:
        """A consumer in this shop's mode, without handlers."""
        return self.app.consumer(name, source, **{"mode": self.mode, **policy})

    def handler(
        self, consumer: Consumer, *types: str, payload: Any = dict, long: bool = False
    ) -> Callable[[Body], Body]:
        """Register a body for these types, as this kind of driver wants it."""

        def register(body: Body) -> Body:
            consumer.handler(*types, long=long)(self._adapted(body, payload, Message))
            return body

        return register

    def batch_handler(self, consumer: Consumer, *types: str, payload: Any = dict) -> Callable[[Body], Body]:
        """Register a body that takes lists."""

        def register(body: Body) -> Body:
            consumer.batch_handler(*types)(self._adapted(body, list[payload], list[Message]))
            return body

        return register

    def _adapted(self, body: Body, payload: Any, message: Any) -> Callable[..., Any]:
        kind = self.kind

        async def waiting(payload, message, tx, conn):  # type: ignore[no-untyped-def]
            return await body(Call(payload, message, tx, Db(kind, conn)))

        def blocking(payload, message, tx, conn):  # type: ignore[no-untyped-def]
            return at_once(body(Call(payload, message, tx, Db(kind, conn))))

        adapted: Callable[..., Any] = waiting if kind.is_async else blocking
        adapted.__annotations__ = {
            "payload": payload, "message": message, "tx": Tx, "conn": kind.connection
        }  # fmt: skip
        return adapted

    def gate(self) -> Gate:
        """Something a body can wait for without stopping the others."""
        return Gate(self.kind.is_async)

    # Delivering

    async def deliver(self, consumer: Consumer, message: Message) -> Outcome:
        """What a delivery comes to: handled (inline) or stored."""
        if self.kind.is_async:
            return await consumer.process(message)
        return await self.in_thread(partial(consumer.process_sync, message))

    async def deliver_at_once(self, consumer: Consumer, messages: Iterable[Message]) -> list[Outcome]:
        """Deliver side by side: threads or tasks that start together."""
        messages = list(messages)
        if self.kind.is_async:
            return list(await asyncio.gather(*(consumer.process(message) for message in messages)))
        barrier = threading.Barrier(len(messages))

        def one(message: Message) -> Outcome:
            barrier.wait(PATIENCE_SECONDS)
            return consumer.process_sync(message)

        return list(await asyncio.gather(*(self.in_thread(partial(one, message)) for message in messages)))

    async def work(
        self, consumer: Consumer, *, slot: int = 1, long: bool = False, suspect: bool = False
    ) -> list[Item]:
        """One turn of a stored worker; what it settled."""
        settled: list[Item] = []
        flow = work_long if long else partial(work_batch, suspect=suspect)
        await self.perform(consumer, flow, slot=slot, settled=settled)
        return settled

    async def work_off(self, consumer: Consumer, *, slot: int = 1) -> list[Item]:
        """Turns of a stored worker until nothing is due."""
        settled: list[Item] = []
        for _ in range(1000):
            if not await self.perform(consumer, work_batch, slot=slot, settled=settled):
                return settled
        raise AssertionError("the queue does not get empty")

    async def empty_queue(self, consumer: Consumer) -> None:
        """Work until nothing waits, due or not: who takes a row before another, giving it up, has withdrawn its
        marker puts it off for a second."""
        async with asyncio.timeout(30):
            while self.count("queue"):
                await self.work_off(consumer)
                await asyncio.sleep(0.01)

    async def settle(self, consumer: Consumer, message: Message) -> Outcome:
        """Deliver, and in stored mode work, until the message's handler has decided its outcome."""
        outcome = await self.deliver(consumer, message)
        if self.mode == "inline":
            return outcome
        for _ in range(50):
            for item in await self.work(consumer):
                if item.message.id == message.id:
                    assert item.outcome is not None
                    return item.outcome
        raise AssertionError(f"{message.id} was delivered ({outcome.status}), but never handled")

    async def settle_all(
        self, consumer: Consumer, messages: Sequence[Message], *, turns: int = 200
    ) -> dict[str, list[Outcome]]:
        """Deliver all of them to one worker, and let it take turns until nothing is left for it."""
        settled: list[Item] = []
        if self.mode == "stored":
            items = [consumer.intake.from_message(message) for message in messages]
            await self.perform(consumer, lambda work: receive(work, items))
            settled = await self.work_off(consumer)
        else:
            mailbox = ThreadMailbox()
            mailbox.items.extend(consumer.intake.from_message(message) for message in messages)
            for _ in range(turns):
                if not await self.perform(
                    consumer, lambda work: inline_turn(work, mailbox), settled=settled, mailbox=mailbox
                ):
                    break
        outcomes: dict[str, list[Outcome]] = {message.id: [] for message in messages}
        for item in settled:
            assert item.outcome is not None
            outcomes[item.message.id].append(item.outcome)
        return outcomes

    def work_of(self, consumer: Consumer, slot: int = 1) -> Work:
        """The state a worker keeps between its turns."""
        key = (consumer.name, slot)
        if key not in self._works:
            work = self._works[key] = consumer.work(f"worker-{slot}", slot)
            work.jitter = _Later()
        return self._works[key]

    async def perform(
        self,
        consumer: Consumer,
        flow: Callable[[Work], Op[T]],
        *,
        slot: int = 1,
        settled: list[Item] | None = None,
        mailbox: Mailbox | None = None,
        through: Through = lambda perform: perform,
        keep: Callable[[Item, bool], None] = lambda item, on: None,
    ) -> T:
        """Run a flow as a worker would. `Next` finds what is in `mailbox`; `through` may intercept steps."""
        work = self.work_of(consumer, slot)

        def settle(items: Sequence[Item]) -> None:
            if mailbox is not None:
                mailbox.settled(items)
            if settled is not None:
                settled.extend(items)

        def hands(session: Any, side: Any) -> Perform:
            performer = Performer(
                work,
                session,
                side,
                is_async=self.kind.is_async,
                next_item=lambda: (
                    mailbox.take(loose=True) if mailbox is not None and work.policy.batch == 1 else None
                ),
                settle=settle,
                keep=keep,
                load=self.app.load,
                watchdog=self.app.watchdog,
            )
            return through(performer)

        if self.kind.is_async:
            state = self.app.async_state
            async with (await state.sessions(consumer.policy)).lend() as session:
                return await run_async(flow(work), hands(session, state.side))

        def blocking() -> T:
            state = self.app.sync_state
            with state.sessions(consumer.policy).lend() as session:
                return run(flow(work), hands(session, state.side))

        return await self.in_thread(blocking)

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        """Blocking work, beside the event loop."""
        return asyncio.get_running_loop().run_in_executor(self._pool, call)

    # Looking

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """Ask the database, on a connection of the observer's own that commits at once."""
        if self._seen is None:
            self._seen = (
                sqlite3.connect(_path(self._url), isolation_level=None, check_same_thread=False)
                if self.kind.engine == "sqlite"
                else psycopg.connect(self._url, autocommit=True)
            )
        if self.kind.engine != "sqlite":
            sql = sql.replace("?", "%s")
        cursor = self._seen.execute(sql, params)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def table(self, name: str) -> str:
        """One of oncebox's tables, as this engine spells it."""
        return f"oncebox_{name}" if self.kind.engine == "sqlite" else f"oncebox.{name}"

    def count(self, name: str) -> int:
        """Rows in one of oncebox's tables."""
        return int(self.rows(f"SELECT count(*) FROM {self.table(name)}")[0][0])

    def effects(self) -> Counter[str]:
        """How often each key took effect."""
        return Counter(key for (key,) in self.rows("SELECT key FROM shop_effect"))

    def notes(self) -> list[str]:
        """What effects say, in the order they were made on one worker."""
        order = "rowid" if self.kind.engine == "sqlite" else "n"
        return [note for (note,) in self.rows(f"SELECT note FROM shop_effect ORDER BY {order}")]

    def dead(self) -> list[tuple[Any, ...]]:
        """(id, reason, error type, error) of the dead, by id."""
        columns = "message_id, reason, error_type, error"
        return self.rows(f"SELECT {columns} FROM {self.table('dead')} ORDER BY message_id, died")

    def attempts(self, message_id: str) -> list[tuple[Any, ...]]:
        """(n, died, error type, error, traceback) of every attempt on record."""
        columns = "n, died, error_type, error, traceback"
        return self.rows(
            f"SELECT {columns} FROM {self.table('attempt')} WHERE message_id = ? ORDER BY n", message_id
        )


def _path(url: str) -> Path:
    return Path(urlsplit(url).path.removeprefix("/"))


@functools.cache
def _pattern() -> Path:
    """A SQLite file with all tables, to be copied: migrating takes longer than most tests."""
    folder = tempfile.mkdtemp(prefix="oncebox-shop-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, "shop.db")
    app = App(f"sqlite:///{path}")
    migrate(app.database)
    app.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(EFFECT)
    return path


def _catalogue(kind: Kind) -> str:
    return "sqlite_master WHERE name" if kind.engine == "sqlite" else "pg_class WHERE relname"
