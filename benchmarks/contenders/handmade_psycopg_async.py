"""Hand-written flows on psycopg's async connections: held, one task each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from benchmarks.contenders.base import UPDATE_PSYCOPG, Contender
from benchmarks.contenders.handmade_asyncpg import HandmadeAsyncpg
from benchmarks.contenders.handmade_psycopg import COMPLETED, PENDING, PROCESSING
from benchmarks.load import Load, decode
from benchmarks.stage import Place
from oncebox import Message

Connection = psycopg.AsyncConnection[Any]


async def effect(conn: Connection, message: Message) -> None:
    """What every contender does for a message: one row changes, and it is looked at."""
    payment = decode(message.payload)
    cursor = await conn.execute(UPDATE_PSYCOPG, (payment.amount, payment.account))
    assert cursor.rowcount == 1


async def unprotected(conn: Connection, message: Message) -> None:
    """A: BEGIN (psycopg sends it with the first statement), effect, COMMIT."""
    await effect(conn, message)
    await conn.commit()


async def pending(conn: Connection, message: Message) -> None:
    """pending → processing → completed."""
    inserted = await conn.execute(PENDING, (message.id, bytes(message.payload).decode()))
    if inserted.rowcount == 1:
        await conn.execute(PROCESSING, (message.id,))
        await effect(conn, message)
        await conn.execute(COMPLETED, (message.id,))
    await conn.commit()


FLOWS: dict[str, Callable[[Connection, Message], Awaitable[None]]] = {
    "unprotected": unprotected,
    "pending": pending,
}


class HandmadePsycopgAsync(HandmadeAsyncpg):
    """The same loop as on asyncpg; statements are prepared from their second use on."""

    def __init__(self, flow: str, concurrency: int = 1, load: Load | None = None) -> None:
        Contender.__init__(self, "psycopg-async", concurrency, load)
        self.label = flow
        self._flow = FLOWS[flow]

    async def open(self, stage: Place) -> None:
        self._connections = [
            await psycopg.AsyncConnection.connect(stage.url, prepare_threshold=1)
            for _ in range(self.concurrency)
        ]
