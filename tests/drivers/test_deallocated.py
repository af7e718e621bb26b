"""A handler that deallocates prepared statements takes oncebox's own along; the worker must get over it."""

from __future__ import annotations

from typing import Any

import asyncpg
import psycopg
import pytest

from oncebox import App, Message
from oncebox.brokers.memory import Memory
from oncebox.schema import migrate


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_worker_gets_over_a_handler_that_deallocates_everything(pg_url: str, driver: str) -> None:
    migrate(pg_url)
    broker = Memory()
    scheme = "postgresql+asyncpg" if driver == "asyncpg" else "postgresql"
    app = App(f"{scheme}://{pg_url.split('://', 1)[1]}")
    billing = app.consumer("billing", broker.queue("payments"), concurrency=1)
    runs: list[str] = []

    async def on_asyncpg(message: Message, conn: asyncpg.Connection) -> None:
        runs.append(message.id)
        if len(runs) == 1:
            await conn.execute("DEALLOCATE ALL")

    def on_psycopg(message: Message, conn: psycopg.Connection[Any]) -> None:
        runs.append(message.id)
        if len(runs) == 1:
            conn.execute("DEALLOCATE ALL")

    billing.handler("paid")(on_asyncpg if driver == "asyncpg" else on_psycopg)
    async with app.running():
        broker.put("payments", *(Message(id=f"evt-{n}", type="paid", payload={}) for n in range(5)))
        await broker.drained("payments")
    with psycopg.connect(pg_url) as connection:
        (row,) = connection.execute("SELECT count(*), count(finished) FROM oncebox.ledger").fetchall()
        (dead,) = connection.execute("SELECT count(*) FROM oncebox.dead").fetchall()
    assert row == (5, 5)
    assert dead == (0,)
    assert set(runs) == {f"evt-{n}" for n in range(5)}
