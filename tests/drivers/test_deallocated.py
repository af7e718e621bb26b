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
from oncebox.core.steps import Begin
from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings
from oncebox.schema import migrate


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "psycopg-async"])
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

    async def on_psycopg_async(message: Message, conn: psycopg.AsyncConnection[Any]) -> None:
        runs.append(message.id)
        if len(runs) == 1:
            await conn.execute("DEALLOCATE ALL")

    handlers: dict[str, Any] = {
        "asyncpg": on_asyncpg,
        "psycopg": on_psycopg,
        "psycopg-async": on_psycopg_async,
    }
    billing.handler("paid")(handlers[driver])
    async with app.running():
        broker.put("payments", *(Message(id=f"evt-{n}", type="paid", payload={}) for n in range(5)))
        await broker.drained("payments")
    with psycopg.connect(pg_url) as connection:
        (row,) = connection.execute("SELECT count(*), count(finished) FROM oncebox.ledger").fetchall()
        (dead,) = connection.execute("SELECT count(*) FROM oncebox.dead").fetchall()
    assert row == (5, 5)
    assert dead == (0,)
    assert set(runs) == {f"evt-{n}" for n in range(5)}


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "psycopg-async"])
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

    async def on_psycopg_async(message: Message, conn: psycopg.AsyncConnection[Any]) -> None: ...

    handlers: dict[str, Any] = {
        "asyncpg": on_asyncpg,
        "psycopg": on_psycopg,
        "psycopg-async": on_psycopg_async,
    }
    billing.handler("paid")(handlers[driver])

    async def process(message_id: str) -> Status:
        message = Message(id=message_id, type="paid", payload={})
        if driver == "psycopg":
            return (await asyncio.to_thread(billing.process_sync, message)).status
        return (await billing.process(message)).status

    with psycopg.connect(pg_url) as other:
        other.execute("LOCK TABLE oncebox.ledger IN SHARE MODE")
        assert await process("evt-1") is Status.IN_FLIGHT
    assert [await process(f"evt-{n}") for n in (1, 2, 3)] == [Status.PROCESSED] * 3
    app.close()
    await app.aclose()


@pytest.mark.parametrize("awaits", [False, True])
async def test_a_handler_that_drops_what_it_made_keeps_its_connection(pg_url: str, awaits: bool) -> None:
    """psycopg deallocates everything when it sees a DROP pass; that must not cost a connection each time."""
    migrate(pg_url)
    broker = Memory()
    app = App(pg_url)
    billing = app.consumer("billing", broker.queue("payments"), concurrency=1)
    servers: set[int] = set()
    # psycopg prepares what comes again, and then has something to deallocate.
    statements = [*["SELECT 1"] * 7, "CREATE TEMP TABLE note (word text)", "DROP TABLE note"]

    def captured(message: Message, conn: psycopg.Connection[Any]) -> None:
        for statement in statements:
            conn.execute(statement.encode())
        servers.add(conn.info.backend_pid)

    async def captured_async(message: Message, conn: psycopg.AsyncConnection[Any]) -> None:
        for statement in statements:
            await conn.execute(statement.encode())
        servers.add(conn.info.backend_pid)

    billing.handler("paid")(captured_async if awaits else captured)
    async with app.running():
        broker.put("payments", *(Message(id=f"evt-{n}", type="paid", payload={}) for n in range(20)))
        await broker.drained("payments")
    assert len(servers) == 1


async def test_a_rollback_leaves_what_is_prepared(pg_url: str) -> None:
    """Through a cursor, psycopg would see it pass and deallocate everything."""
    migrate(pg_url)
    session = await Database(pg_url).connect_async(Settings())
    await session.begin(Begin("a-token"))
    for _ in range(7):
        await session.raw.execute("SELECT 1 WHERE %s", (True,))
    names = "SELECT name FROM pg_prepared_statements ORDER BY name"
    before = await (await session.raw.execute(names)).fetchall()
    await session.rollback()
    assert await (await session.raw.execute(names)).fetchall() == before
    assert any(name.startswith("oncebox") for (name,) in before)
    await session.close()


@pytest.mark.parametrize("awaits", [False, True])
async def test_an_error_of_the_servers_leaves_what_a_handler_has_prepared_itself(
    pg_url: str, awaits: bool
) -> None:
    """Once for each connection, as one may: nobody else's failure takes it away."""
    migrate(pg_url)
    broker = Memory()
    app = App(pg_url)
    billing = app.consumer("billing", broker.queue("payments"), concurrency=1, retry=Backoff(attempts=1))
    ready: set[int] = set()

    def statements(message: Message, server: int) -> list[bytes]:
        first = [] if server in ready else [b"PREPARE mine AS SELECT 1"]
        ready.add(server)
        return [*first, b"SELECT 1/0" if message.id == "evt-2" else b"EXECUTE mine"]

    def captured(message: Message, conn: psycopg.Connection[Any]) -> None:
        for statement in statements(message, conn.info.backend_pid):
            conn.execute(statement)

    async def captured_async(message: Message, conn: psycopg.AsyncConnection[Any]) -> None:
        for statement in statements(message, conn.info.backend_pid):
            await conn.execute(statement)

    billing.handler("paid")(captured_async if awaits else captured)
    async with app.running():
        broker.put("payments", *(Message(id=f"evt-{n}", type="paid", payload={}) for n in range(6)))
        await broker.drained("payments")
    with psycopg.connect(pg_url) as conn:
        assert conn.execute("SELECT message_id FROM oncebox.dead").fetchall() == [("evt-2",)]
