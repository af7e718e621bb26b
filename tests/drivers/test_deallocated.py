"""A handler that deallocates prepared statements takes oncebox's own along; the worker must get over it."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import psycopg
import pytest

from oncebox import App, Backoff, Message
from oncebox.brokers.memory import Memory
from oncebox.core.outcomes import Status
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


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_claim_that_could_not_be_prepared_costs_no_other_message_anything(
    pg_url: str, driver: str
) -> None:
    """The first message of its kind brings along what prepares its claim. Where that fails, the next starts anew."""
    migrate(pg_url)
    scheme = "postgresql+asyncpg" if driver == "asyncpg" else "postgresql"
    app = App(f"{scheme}://{pg_url.split('://', 1)[1]}")
    billing = app.consumer("billing", retry=Backoff(attempts=1), lock_timeout=0.1)

    async def on_asyncpg(message: Message, conn: asyncpg.Connection) -> None: ...

    def on_psycopg(message: Message, conn: psycopg.Connection[Any]) -> None: ...

    billing.handler("paid")(on_asyncpg if driver == "asyncpg" else on_psycopg)

    async def process(message_id: str) -> Status:
        message = Message(id=message_id, type="paid", payload={})
        if driver == "asyncpg":
            return (await billing.process(message)).status
        return (await asyncio.to_thread(billing.process_sync, message)).status

    with psycopg.connect(pg_url) as other:
        other.execute("LOCK TABLE oncebox.ledger IN SHARE MODE")
        assert await process("evt-1") is Status.IN_FLIGHT
    assert [await process(f"evt-{n}") for n in (1, 2, 3)] == [Status.PROCESSED] * 3
    app.close()
    await app.aclose()


async def test_a_handler_that_drops_what_it_made_keeps_its_connection(pg_url: str) -> None:
    """psycopg deallocates everything when it sees a DROP pass; that must not cost a connection each time."""
    migrate(pg_url)
    broker = Memory()
    app = App(pg_url)
    billing = app.consumer("billing", broker.queue("payments"), concurrency=1)
    servers: set[int] = set()

    @billing.handler("paid")
    def captured(message: Message, conn: psycopg.Connection[Any]) -> None:
        for _ in range(7):  # psycopg prepares what comes again, and then has something to deallocate
            conn.execute("SELECT %s::int", (1,))
        conn.execute("CREATE TEMP TABLE note (word text)")
        conn.execute("DROP TABLE note")
        servers.add(conn.info.backend_pid)

    async with app.running():
        broker.put("payments", *(Message(id=f"evt-{n}", type="paid", payload={}) for n in range(20)))
        await broker.drained("payments")
    assert len(servers) == 1
