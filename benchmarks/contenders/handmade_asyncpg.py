"""Hand-written flows on asyncpg: held connections, one task each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import asyncpg

from benchmarks.contenders.base import UPDATE_ASYNCPG, Contender
from benchmarks.load import Load, decode
from benchmarks.stage import Place
from oncebox import Message

PENDING = (
    "INSERT INTO handmade_inbox (consumer, message_id, payload, status) VALUES ('bench', $1, $2, 'pending') "
    "ON CONFLICT DO NOTHING"
)
PROCESSING = "UPDATE handmade_inbox SET status = 'processing' WHERE consumer = 'bench' AND message_id = $1"
COMPLETED = (
    "UPDATE handmade_inbox SET status = 'completed', processed = statement_timestamp() "
    "WHERE consumer = 'bench' AND message_id = $1"
)
INSERT = "INSERT INTO handmade (consumer, message_id, status) VALUES ('bench', $1, $2) ON CONFLICT DO NOTHING"
SET_STATUS = "UPDATE handmade SET status = $1 WHERE consumer = 'bench' AND message_id = $2"
SELECT = "SELECT status FROM handmade_inbox WHERE consumer = 'bench' AND message_id = $1 FOR UPDATE"


async def effect(conn: Any, message: Message) -> None:
    """What every contender does for a message: one row changes, and it is looked at."""
    payment = decode(message.payload)
    assert await conn.execute(UPDATE_ASYNCPG, payment.amount, payment.account) == "UPDATE 1"


async def unprotected(conn: Any, message: Message) -> None:
    """A: BEGIN, effect, COMMIT; the barest form, without asyncpg's transaction object."""
    await conn.execute("BEGIN")
    await effect(conn, message)
    await conn.execute("COMMIT")


async def unprotected_block(conn: Any, message: Message) -> None:
    """The transaction that the guard joins, without it."""
    async with conn.transaction():
        await effect(conn, message)


async def pending(conn: Any, message: Message) -> None:
    """pending → processing → completed, with the table that such flows have in print."""
    await conn.execute("BEGIN")
    if await conn.execute(PENDING, message.id, bytes(message.payload).decode()) == "INSERT 0 1":
        await conn.execute(PROCESSING, message.id)
        await effect(conn, message)
        await conn.execute(COMPLETED, message.id)
    await conn.execute("COMMIT")


async def pending_seen(conn: Any, message: Message) -> None:
    """The same, with a commit of its own for what is pending, so that others can see it."""
    if await conn.execute(PENDING, message.id, bytes(message.payload).decode()) == "INSERT 0 1":
        await conn.execute("BEGIN")
        await conn.execute(PROCESSING, message.id)
        await effect(conn, message)
        await conn.execute(COMPLETED, message.id)
        await conn.execute("COMMIT")


async def pending_bare(conn: Any, message: Message) -> None:
    """The same in one transaction, in a table of keys and states: no payload, nothing to find what is stuck by."""
    await conn.execute("BEGIN")
    if await conn.execute(INSERT, message.id, "pending") == "INSERT 0 1":
        await conn.execute(SET_STATUS, "processing", message.id)
        await effect(conn, message)
        await conn.execute(SET_STATUS, "completed", message.id)
    await conn.execute("COMMIT")


async def select_for_update(conn: Any, message: Message) -> None:
    """Look, insert, handle, complete."""
    await conn.execute("BEGIN")
    if await conn.fetchrow(SELECT, message.id) is None:
        await conn.execute(PENDING, message.id, bytes(message.payload).decode())
        await effect(conn, message)
        await conn.execute(COMPLETED, message.id)
    await conn.execute("COMMIT")


async def insert_complete(conn: Any, message: Message) -> None:
    """Insert the row complete, handle."""
    await conn.execute("BEGIN")
    if await conn.execute(INSERT, message.id, "completed") == "INSERT 0 1":
        await effect(conn, message)
    await conn.execute("COMMIT")


FLOWS: dict[str, Callable[[Any, Message], Awaitable[None]]] = {
    "unprotected": unprotected,
    "unprotected_block": unprotected_block,
    "pending": pending,
    "pending_seen": pending_seen,
    "pending_bare": pending_bare,
    "select_for_update": select_for_update,
    "insert_complete": insert_complete,
}


class HandmadeAsyncpg(Contender):
    """A loop per task over held connections; asyncpg prepares and keeps every statement."""

    def __init__(self, flow: str, concurrency: int = 1, load: Load | None = None) -> None:
        super().__init__("asyncpg", concurrency, load)
        self.label = flow
        self._flow = FLOWS[flow]

    async def open(self, stage: Place) -> None:
        self._connections = [await asyncpg.connect(stage.url) for _ in range(self.concurrency)]

    async def run(self, messages: Sequence[Message]) -> float:
        shared = iter(messages)
        started = time.perf_counter()
        await asyncio.gather(*(self._work(conn, shared) for conn in self._connections))
        return time.perf_counter() - started

    async def _work(self, conn: Any, shared: Iterator[Message]) -> None:
        flow = self._flow
        for message in shared:
            await flow(conn, message)

    async def close(self) -> None:
        for conn in self._connections:
            await conn.close()
