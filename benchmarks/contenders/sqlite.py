"""SQLite: unprotected transactions, and the library, on one file."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.contenders.base import UPDATE_SQLITE, Contender
from benchmarks.contenders.library import HANDLERS, Count, Library
from benchmarks.load import ACCOUNTS, Load, Payment, decode
from benchmarks.stage import Place
from oncebox import App, Message
from oncebox.drivers.database import Database
from oncebox.runtime.schema import migrate

SET = """
UPDATE account SET balance = balance + p.amount
FROM (SELECT value ->> 0 AS id, sum(value ->> 1) AS amount FROM json_each(?) GROUP BY 1) p
WHERE account.id = p.id
"""


class SqliteStage:
    """A file of its own in a temporary folder, in WAL with synchronous=FULL."""

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="oncebox-bench-"))
        self.path = self._folder / "bench.db"
        self.url = f"sqlite:///{self.path}"
        migrate(Database(self.url))
        self.observer = connect(self.path)
        self.observer.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.observer.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def reset(self) -> None:
        """Empty tables, accounts at 0."""
        tables = self.observer.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'oncebox_*' "
            "AND name <> 'oncebox_version'"
        ).fetchall()
        self.observer.execute("BEGIN IMMEDIATE")
        for (name,) in [*tables, ("account",)]:
            self.observer.execute(f"DELETE FROM {name}")
        self.observer.executemany("INSERT INTO account VALUES (?, 0)", ((n + 1,) for n in range(ACCOUNTS)))
        self.observer.execute("COMMIT")

    def balance(self) -> int:
        """Every effect so far adds 1."""
        return int(self.observer.execute("SELECT sum(balance) FROM account").fetchone()[0])

    def is_queue_empty(self) -> bool:
        """Whether nothing that was stored is left to do."""
        return self.observer.execute("SELECT 1 FROM oncebox_queue LIMIT 1").fetchone() is None

    def server_cpu(self) -> float | None:
        """There is no server."""
        return None


def connect(path: Path) -> sqlite3.Connection:
    """As oncebox opens it."""
    conn = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
    conn.execute("PRAGMA journal_mode=WAL")
    conn.execute("PRAGMA synchronous=FULL")
    return conn


class SqliteUnprotected(Contender):
    """A: BEGIN IMMEDIATE, effect, COMMIT."""

    label = "unprotected"

    def __init__(self, load: Load | None = None) -> None:
        super().__init__("sqlite", 1, load)

    async def open(self, stage: Place) -> None:
        self._conn = connect(Path(stage.url.removeprefix("sqlite:///")))
        self._threads = ThreadPoolExecutor(1)

    async def run(self, messages: Sequence[Message]) -> float:
        started = time.perf_counter()
        await asyncio.get_running_loop().run_in_executor(self._threads, self._work, messages)
        return time.perf_counter() - started

    def _work(self, messages: Sequence[Message]) -> None:
        conn = self._conn
        for message in messages:
            payment = decode(message.payload)
            conn.execute("BEGIN IMMEDIATE")
            assert conn.execute(UPDATE_SQLITE, (payment.amount, payment.account)).rowcount == 1
            conn.execute("COMMIT")

    async def close(self) -> None:
        self._threads.shutdown()
        self._conn.close()


class SqliteLibrary(Library):
    """The whole library on a SQLite file."""

    def __init__(self, label: str, load: Load | None = None, **words: Any) -> None:
        super().__init__(label, "sqlite", 1, load, **words)

    def app(self, stage: Place) -> App:
        return App(stage.url)


def sqlite_handler(count: Count) -> Any:
    """One message."""

    def captured(payment: Payment, conn: sqlite3.Connection) -> None:
        assert conn.execute(UPDATE_SQLITE, (payment.amount, payment.account)).rowcount == 1
        count(1)

    return captured


def sqlite_set_handler(count: Count) -> Any:
    """A whole batch in one statement."""

    def captured(payments: list[Payment], conn: sqlite3.Connection) -> None:
        rows = ",".join(f"[{payment.account},{payment.amount}]" for payment in payments)
        changed = conn.execute(SET, (f"[{rows}]",)).rowcount
        assert changed == len({payment.account for payment in payments})
        count(len(payments))

    return captured


HANDLERS["sqlite", False] = sqlite_handler
HANDLERS["sqlite", True] = sqlite_set_handler
