"""A ledger in partitions, and a consumer to fill it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg

from oncebox import App, Message
from oncebox.core import partitions
from oncebox.core.leaves import Tree, read_tree
from oncebox.core.run import run
from oncebox.core.steps import Op
from oncebox.drivers.session import Settings, database_steps
from oncebox.runtime.schema import migrate
from oncebox.runtime.sweeper import Sweeper

DAY = 86_400.0
WINDOW = 10 * DAY


def begin_a_day() -> None:
    """Return where the day has a while to go: a test and its server must mean the same one by today."""
    while days_ago(0) != days_ago(-1 / 1440):
        time.sleep(0.5)


def days_ago(days: float) -> date:
    return (datetime.now(UTC) - timedelta(days=days)).date()


def uuid7(days: float = 0.0, at: float | None = None) -> str:
    """An id that was made so many days ago."""
    milliseconds = int(((time.time() if at is None else at) - days * DAY) * 1000)
    raw = milliseconds << 80 | 7 << 76 | uuid.uuid4().int & ((1 << 76) - 1)
    return str(uuid.UUID(int=raw & ~(3 << 62) | 2 << 62))


def on_day(day: date) -> str:
    """An id of noon of that day."""
    return uuid7(at=datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp())


class Ledger:
    """A database, an app with a consumer, and what is in its ledger."""

    def __init__(self, url: str, *, driver: str = "postgresql", **policy: Any) -> None:
        begin_a_day()
        self.url = url
        self.asyncpg = driver.endswith("asyncpg")
        self.app = App(url.replace("postgresql", driver, 1))
        migrate(App(url).database)
        self.own = psycopg.connect(url, autocommit=True)
        self.rows("CREATE TABLE IF NOT EXISTS effect (id text NOT NULL)")
        self.billing = self.app.consumer("billing", retention=WINDOW, **policy)
        self.queries = self.app.database.queries

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[Any]]:
        connection = psycopg.connect(self.url, autocommit=True)
        try:
            yield connection
        finally:
            connection.close()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        cursor = self.own.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []

    def ask(self, op: Op[Any]) -> Any:
        """Perform a flow, blocking."""
        session = App(self.url).database.connect(Settings())
        try:
            steps = database_steps(session)
            return run(op, lambda step: steps[type(step)](step))
        finally:
            session.close()

    def split(self, *past_days: float) -> None:
        """Partitions for the consumer; also for these days, as if it had had them then."""
        self.ask(partitions.split(self.queries, "billing", "uuid7"))
        for days in past_days:
            self.ask(partitions.make_day(self.queries, self.tree().splits[0], days_ago(days)))

    def tree(self) -> Tree:
        found: Tree = self.ask(read_tree(self.queries, 0))
        return found

    def leaf(self, days: float) -> str:
        return f"ledger_1_{days_ago(days):%Y%m%d}"

    def ids(self, table: str = "ledger") -> set[str]:
        return {row[0] for row in self.rows(f"SELECT message_id FROM oncebox.{table}")}

    def known(self, days: float, count: int = 1) -> list[str]:
        """Rows with ids of so many days ago, which were handled then."""
        ids = [on_day(days_ago(days)) for _ in range(count)]
        at = f"timestamptz '{days_ago(days)} 12:00:01+00'"
        for id_ in ids:
            self.rows(
                "INSERT INTO oncebox.ledger (consumer, source, message_id, type, fingerprint, received, finished) "
                f"VALUES ('billing', '', '{id_}', '', '', {at}, {at})"
            )
        return ids

    def process(self, *messages: Message) -> list[Any]:
        async def each() -> list[Any]:
            done = [await self.billing.process(message) for message in messages]
            await self.app.aclose()
            return done

        return asyncio.run(each())

    def walk(self, sweeper: Sweeper | None = None) -> Sweeper:
        """A whole walk."""
        sweeper = sweeper or Sweeper(self.app.database, [self.billing], "me")
        sweeper.pause = 0.0
        assert asyncio.run(sweeper.cycle(rest_seconds=0.0)), "the walk does not end"
        return sweeper
