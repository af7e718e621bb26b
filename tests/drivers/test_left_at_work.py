"""A handler returns while something still runs on its connection. Nothing may be sent behind it: behind a COPY it would
wait for ever, and behind a statement it might be that one which ends in another message's transaction."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from oncebox import App, Backoff, Message
from oncebox.brokers.memory import Memory
from oncebox.schema import migrate
from tests.waiting import eventually

COPY = "COPY seen FROM STDIN"
MANY = "SELECT generate_series(1, 1000)"
left: list[Any] = []
"""What handlers let go of, so that nobody collects it."""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left at work here does not end by itself."""
    monkeypatch.setattr("oncebox.drivers.psycopg.LET_GO_SECONDS", 0.2)


def pipeline(conn: psycopg.Connection[Any]) -> None:
    left.append(conn.pipeline())
    left[-1].__enter__()


def copy(conn: psycopg.Connection[Any]) -> None:
    left.append(conn.cursor().copy(COPY))
    left[-1].__enter__()


def stream(conn: psycopg.Connection[Any]) -> None:
    left.append(conn.cursor().stream(MANY))
    next(left[-1])


def thread(conn: psycopg.Connection[Any]) -> None:
    def forgotten() -> None:
        with suppress(psycopg.Error):
            conn.execute("SELECT pg_sleep(600)")

    left.append(threading.Thread(target=forgotten))
    left[-1].start()
    eventually(lambda: conn.pgconn.transaction_status == TransactionStatus.ACTIVE)


async def pipeline_async(conn: psycopg.AsyncConnection[Any]) -> None:
    left.append(conn.pipeline())
    await left[-1].__aenter__()


async def copy_async(conn: psycopg.AsyncConnection[Any]) -> None:
    left.append(conn.cursor().copy(COPY))
    await left[-1].__aenter__()


async def stream_async(conn: psycopg.AsyncConnection[Any]) -> None:
    left.append(conn.cursor().stream(MANY))
    await anext(left[-1])


async def statement(conn: psycopg.AsyncConnection[Any]) -> None:
    left.append(asyncio.create_task(conn.execute("SELECT pg_sleep(600)")))
    await asyncio.sleep(0)


@pytest.mark.parametrize("batch", [1, 10])
@pytest.mark.parametrize("leave", [pipeline, copy, stream, thread])
async def test_what_a_handler_leaves_at_work_is_its_messages_end(
    pg_url: str, leave: Callable[[psycopg.Connection[Any]], None], batch: int
) -> None:
    def captured(message: Message, conn: psycopg.Connection[Any]) -> None:
        conn.execute("INSERT INTO seen VALUES (%s)", (message.id,))
        if message.id in ("evt-0", "evt-1"):
            leave(conn)
        if message.id == "evt-1":
            raise ValueError("no such account")

    await run(pg_url, captured, batch)
    for one in left:
        if isinstance(one, threading.Thread):
            one.join(10)
            assert not one.is_alive()
        else:
            with suppress(psycopg.Error):
                one.close() if leave is stream else one.__exit__(None, None, None)


@pytest.mark.parametrize("batch", [1, 10])
@pytest.mark.parametrize("leave", [pipeline_async, copy_async, stream_async, statement])
async def test_what_an_awaiting_handler_leaves_at_work_is_its_messages_end(
    pg_url: str, leave: Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]], batch: int
) -> None:
    async def captured(message: Message, conn: psycopg.AsyncConnection[Any]) -> None:
        await conn.execute("INSERT INTO seen VALUES (%s)", (message.id,))
        if message.id in ("evt-0", "evt-1"):
            await leave(conn)
        if message.id == "evt-1":
            raise ValueError("no such account")

    await run(pg_url, captured, batch)
    for one in left:
        with suppress(psycopg.Error):
            if leave is statement:
                await one
            else:
                await (one.aclose() if leave is stream_async else one.__aexit__(None, None, None))


async def numbers(conn: psycopg.AsyncConnection[Any]) -> AsyncIterator[int]:
    """Rows from a pipeline, which is ended with the iteration."""
    async with conn.pipeline():
        for n in range(10):
            await conn.execute("SELECT %s::int", (n,))
            yield n


@pytest.mark.parametrize("how", ["stream", "pipeline"])
async def test_what_is_not_read_to_its_end_is_nobodys_end(pg_url: str, how: str) -> None:
    """It is closed a moment after the handler has returned."""
    migrate(pg_url)
    broker = Memory()
    app = App(pg_url)
    billing = app.consumer("billing", broker.queue("payments"), concurrency=1)

    @billing.handler("paid")
    async def captured(message: Message, conn: psycopg.AsyncConnection[Any]) -> None:
        async for _ in conn.cursor().stream(MANY) if how == "stream" else numbers(conn):
            break

    async with app.running():
        broker.put("payments", *(Message(id=f"evt-{n}", type="paid", payload={}) for n in range(5)))
        await broker.drained("payments")
    with psycopg.connect(pg_url) as conn:
        assert conn.execute("SELECT count(*) FROM oncebox.dead").fetchone() == (0,)
        assert conn.execute("SELECT count(finished) FROM oncebox.ledger").fetchone() == (5,)


async def run(pg_url: str, handler: Callable[..., Any], batch: int) -> None:
    """Five messages, of which the first two leave something, and the second one raises then."""
    left.clear()
    migrate(pg_url)
    broker = Memory()
    app = App(pg_url)
    retry = Backoff(attempts=1)
    billing = app.consumer("billing", broker.queue("payments"), concurrency=1, batch=batch, retry=retry)
    billing.handler("paid")(handler)
    with psycopg.connect(pg_url, autocommit=True) as conn:
        conn.execute("CREATE TABLE seen (message_id text PRIMARY KEY)")
        async with app.running():
            broker.put("payments", *(Message(id=f"evt-{n}", type="paid", payload={}) for n in range(5)))
            await broker.drained("payments")
        dead = conn.execute("SELECT message_id, reason FROM oncebox.dead ORDER BY 1").fetchall()
        seen = conn.execute("SELECT message_id FROM seen ORDER BY 1").fetchall()
    assert dead == [("evt-0", "terminal"), ("evt-1", "exhausted")]
    assert seen == [(f"evt-{n}",) for n in range(2, 5)]
