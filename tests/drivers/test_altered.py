"""A table that changes while workers run: what is prepared fails once, and no message pays for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import pytest

from oncebox import App, Backoff, Message
from oncebox.brokers.memory import Memory
from oncebox.schema import migrate

READ = "SELECT * FROM price"
DRIVERS = ["asyncpg", "psycopg", "psycopg-async"]


class Wrapped(Exception):
    """The handler's own name for whatever went wrong."""


def handlers(wraps: bool) -> dict[str, Callable[..., Any]]:
    """A handler for each driver: reads a table with all its columns, and may hide the database's error."""

    def on_psycopg(message: Message, conn: psycopg.Connection[Any]) -> None:
        try:
            conn.execute(READ).fetchall()
        except psycopg.Error as error:
            raise Wrapped if wraps else error from error
        conn.execute("INSERT INTO seen VALUES (%s)", (message.id,))

    async def on_psycopg_async(message: Message, conn: psycopg.AsyncConnection[Any]) -> None:
        try:
            await conn.execute(READ)
        except psycopg.Error as error:
            raise Wrapped if wraps else error from error
        await conn.execute("INSERT INTO seen VALUES (%s)", (message.id,))

    async def on_asyncpg(message: Message, conn: asyncpg.Connection) -> None:
        try:
            await conn.fetch(READ)
        except asyncpg.PostgresError as error:
            raise Wrapped if wraps else error from error
        await conn.execute("INSERT INTO seen VALUES ($1)", message.id)

    return {"asyncpg": on_asyncpg, "psycopg": on_psycopg, "psycopg-async": on_psycopg_async}


@pytest.mark.parametrize("batch", [1, 10])
@pytest.mark.parametrize("wraps", [False, True], ids=["as it is", "wrapped"])
@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_table_may_change_while_its_readers_run(
    pg_url: str, driver: str, wraps: bool, batch: int
) -> None:
    migrate(pg_url)
    broker = Memory()
    scheme = "postgresql+asyncpg" if driver == "asyncpg" else "postgresql"
    app = App(f"{scheme}://{pg_url.split('://', 1)[1]}")
    # It is nobody's failure; on asyncpg, which heals by itself, a wrapped one costs those that it meets an attempt.
    attempts = 10 if wraps and driver == "asyncpg" else 1
    retry = Backoff(attempts=attempts, base_seconds=0.01, max_seconds=0.01)
    billing = app.consumer("billing", broker.queue("payments"), concurrency=1, batch=batch, retry=retry)
    billing.handler("paid")(handlers(wraps)[driver])
    with psycopg.connect(pg_url, autocommit=True) as conn:
        conn.execute("CREATE TABLE price (sku text)")
        conn.execute("CREATE TABLE seen (message_id text PRIMARY KEY)")
        async with app.running():
            for start, change in ((0, "ALTER TABLE price ADD COLUMN cents int"), (20, "SELECT 1")):
                ids = [f"evt-{n}" for n in range(start, start + 20)]
                broker.put("payments", *(Message(id=one, type="paid", payload={}) for one in ids))
                await broker.drained("payments")
                conn.execute(change.encode())
        assert conn.execute("SELECT count(*) FROM oncebox.dead").fetchone() == (0,)
        assert conn.execute("SELECT count(*) FROM seen").fetchone() == (40,)
