"""Hand-written flows on psycopg: blocking connections, one thread each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from benchmarks.contenders.base import UPDATE_PSYCOPG, Contender
from benchmarks.load import Load, decode
from benchmarks.stage import Place
from oncebox import Message

Connection = psycopg.Connection[Any]

PENDING = (
    "INSERT INTO handmade_inbox (consumer, message_id, payload, status) VALUES ('bench', %s, %s, 'pending') "
    "ON CONFLICT DO NOTHING"
)
PROCESSING = "UPDATE handmade_inbox SET status = 'processing' WHERE consumer = 'bench' AND message_id = %s"
COMPLETED = (
    "UPDATE handmade_inbox SET status = 'completed', processed = statement_timestamp() "
    "WHERE consumer = 'bench' AND message_id = %s"
)
INSERT = "INSERT INTO handmade (consumer, message_id, status) VALUES ('bench', %s, %s) ON CONFLICT DO NOTHING"
SET_STATUS = "UPDATE handmade SET status = %s WHERE consumer = 'bench' AND message_id = %s"
SELECT = "SELECT status FROM handmade_inbox WHERE consumer = 'bench' AND message_id = %s FOR UPDATE"


def effect(conn: Connection, message: Message) -> None:
    """What every contender does for a message: one row changes, and it is looked at."""
    payment = decode(message.payload)
    assert conn.execute(UPDATE_PSYCOPG, (payment.amount, payment.account)).rowcount == 1


def unprotected(conn: Connection, message: Message) -> None:
    """A: BEGIN (psycopg sends it with the first statement), effect, COMMIT."""
    effect(conn, message)
    conn.commit()


def unprotected_block(conn: Connection, message: Message) -> None:
    """The transaction that the guard joins, without it."""
    with conn.transaction():
        effect(conn, message)


def pending(conn: Connection, message: Message) -> None:
    """pending → processing → completed, with the table that such flows have in print."""
    if conn.execute(PENDING, (message.id, bytes(message.payload).decode())).rowcount == 1:
        conn.execute(PROCESSING, (message.id,))
        effect(conn, message)
        conn.execute(COMPLETED, (message.id,))
    conn.commit()


def pending_seen(conn: Connection, message: Message) -> None:
    """The same, with a commit of its own for what is pending, so that others can see it."""
    inserted = conn.execute(PENDING, (message.id, bytes(message.payload).decode())).rowcount
    conn.commit()
    if inserted == 1:
        conn.execute(PROCESSING, (message.id,))
        effect(conn, message)
        conn.execute(COMPLETED, (message.id,))
        conn.commit()


def pending_bare(conn: Connection, message: Message) -> None:
    """The same in one transaction, in a table of keys and states: no payload, nothing to find what is stuck by."""
    if conn.execute(INSERT, (message.id, "pending")).rowcount == 1:
        conn.execute(SET_STATUS, ("processing", message.id))
        effect(conn, message)
        conn.execute(SET_STATUS, ("completed", message.id))
    conn.commit()


def select_for_update(conn: Connection, message: Message) -> None:
    """Look, insert, handle, complete."""
    if conn.execute(SELECT, (message.id,)).fetchone() is None:
        conn.execute(PENDING, (message.id, bytes(message.payload).decode()))
        effect(conn, message)
        conn.execute(COMPLETED, (message.id,))
    conn.commit()


def insert_complete(conn: Connection, message: Message) -> None:
    """Insert the row complete, handle."""
    if conn.execute(INSERT, (message.id, "completed")).rowcount == 1:
        effect(conn, message)
    conn.commit()


FLOWS: dict[str, Callable[[Connection, Message], None]] = {
    "unprotected": unprotected,
    "unprotected_block": unprotected_block,
    "pending": pending,
    "pending_seen": pending_seen,
    "pending_bare": pending_bare,
    "select_for_update": select_for_update,
    "insert_complete": insert_complete,
}


class HandmadePsycopg(Contender):
    """A loop per thread over held connections; statements are prepared from their second use on."""

    def __init__(
        self, flow: str, concurrency: int = 1, load: Load | None = None, *, autocommit: bool = False
    ) -> None:
        super().__init__("psycopg", concurrency, load)
        self.label = flow
        self._flow = FLOWS[flow]
        self._autocommit = autocommit

    async def open(self, stage: Place) -> None:
        self._threads = ThreadPoolExecutor(self.concurrency)
        self._connections = [
            psycopg.connect(stage.url, prepare_threshold=1, autocommit=self._autocommit)
            for _ in range(self.concurrency)
        ]

    async def run(self, messages: Sequence[Message]) -> float:
        loop = asyncio.get_running_loop()
        shared = iter(messages)
        started = time.perf_counter()
        await asyncio.gather(
            *(loop.run_in_executor(self._threads, self._work, conn, shared) for conn in self._connections)
        )
        return time.perf_counter() - started

    def _work(self, conn: Connection, shared: Iterator[Message]) -> None:
        flow = self._flow
        for message in shared:
            flow(conn, message)

    async def close(self) -> None:
        for conn in self._connections:
            conn.close()
        self._threads.shutdown()
