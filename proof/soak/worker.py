"""A worker process of the soak: both consumers, as in production, until it is killed or told to end."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from oncebox import App, Backoff, Message, Tx
from oncebox.brokers.contract import Delivery
from oncebox.brokers.remote import RemoteMemory, RemoteSource
from oncebox.consumer import Consumer
from oncebox.core.steps import Begin, Call
from oncebox.drivers.sqlite import SqliteSession

CONSUMERS: dict[str, dict[str, Any]] = {
    "inline": {"mode": "inline", "batch": 20},
    "group": {"mode": "inline", "durability": "group"},
    "stored": {"mode": "stored", "batch": 50},
}
"""What is at work beside each other, each with a queue of its own."""


class Spec(msgspec.Struct):
    """What a worker is told."""

    url: str
    address: str
    folder: str
    full: str = ""
    """A file that says, while it is there, that the disk is full."""


class CountedSource(RemoteSource):
    """Writes every ack down before the broker can hear it; a kill does not lose what was written."""

    def __init__(self, spec: Spec, queue: str) -> None:
        super().__init__(RemoteMemory(spec.address)._address, queue)
        path = Path(spec.folder) / f"{queue}.{os.getpid()}.acks"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        ids = [str(self.identity.resolve(delivery).id) for delivery in deliveries]
        os.write(self._file, ("\n".join(ids) + "\n").encode())
        await super().ack(deliveries)


INSERT = "INSERT INTO effects (consumer, source, message_id, pid) VALUES (%s, %s, %s, %s)"


def register(consumer: Consumer, url: str) -> None:
    """A handler whose effect is a row that nothing but oncebox keeps from being there twice."""

    def postgres(message: Message, tx: Tx, conn: psycopg.Connection) -> None:
        conn.execute(INSERT, (tx.consumer, message.source, message.id, os.getpid()))

    def lite(message: Message, tx: Tx, conn: sqlite3.Connection) -> None:
        row = (tx.consumer, message.source, message.id, os.getpid())
        conn.execute(INSERT.replace("%s", "?"), row)

    consumer.handler("t")(lite if url.startswith("sqlite") else postgres)


def fill_disk(full: str) -> None:
    """No connection of this process can make its file larger while `full` is there."""
    patched: Any = SqliteSession
    begin, side = patched.begin, patched.side

    def limit(session: SqliteSession) -> None:
        # One page: that is, no more than there are.
        session.raw.execute(f"PRAGMA max_page_count={1 if os.path.exists(full) else 2**30}")

    def limited_begin(session: SqliteSession, step: Begin) -> Any:
        limit(session)
        return begin(session, step)

    def limited_side(session: SqliteSession, call: Call) -> Any:
        limit(session)
        return side(session, call)

    patched.begin, patched.side = limited_begin, limited_side


async def work(spec: Spec) -> None:
    """Run the app until SIGTERM."""
    app = App(spec.url, heartbeat_seconds=0.5, lapse_seconds=5.0, drain_seconds=20)
    for name, words in CONSUMERS.items():
        # Kills are random here: that one message is in hand when four processes die is no crash loop.
        policy = {"retry": Backoff(base_seconds=0.01), "concurrency": 2, "crash_limit": 1000, **words}
        register(app.consumer(name, CountedSource(spec, name), **policy), spec.url)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with app.running():
        await stop.wait()


def main(spec: dict[str, Any]) -> None:
    """In the child. SIGUSR1 prints where every thread stands."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    told = msgspec.convert(spec, Spec)
    if told.full:
        fill_disk(told.full)
    asyncio.run(work(told))
