"""A worker process of `proof.order`: handles what is stored, in order, until it is killed or told to end."""

from __future__ import annotations

import asyncio
import logging
import signal
import sqlite3
import sys
import zlib
from typing import Any

import msgspec
import psycopg

from oncebox import App, Backoff, Message
from oncebox.consumer import Consumer

CONSUMER = "cases"
BY: dict[str, dict[str, Any]] = {
    "key": {"order_by": "key", "key": "case"},
    "sequence": {
        "order_by": "sequence", "key": "case", "sequence": "version", "sequence_start": 1, "gap_seconds": 86_400
    },
}  # fmt: skip
# What the handler finds before itself is kept with its effect: two of a key side by side would find the same.
LINE = (
    "INSERT INTO proof_line (key, version, found) "
    "SELECT ?, ?, coalesce((SELECT max(version) FROM proof_line WHERE key = ?), 0)"
)


class Spec(msgspec.Struct):
    """What a worker is told."""

    url: str
    by: str
    workers: int
    batch: int
    failing: float


class Broken(Exception):
    """What a handler raises at its first attempt, for some."""


def consumer(app: App, by: str, **policy: Any) -> Consumer:
    """The consumer, as whoever stores and whoever works must both see it."""
    return app.consumer(CONSUMER, mode="stored", **BY[by], **policy)


def fails(message: Message, share: float) -> bool:
    """Whether this is the one time that this message fails."""
    return message.attempt == 1 and zlib.crc32(message.id.encode()) % 10_000 < share * 10_000


def register(cases: Consumer, spec: Spec) -> None:
    if spec.url.startswith("sqlite"):

        @cases.handler()
        def write(payload: dict, message: Message, conn: sqlite3.Connection) -> None:  # type: ignore[type-arg]
            _handle(conn, LINE, payload, message, spec)

    else:

        @cases.handler()
        def write_to_postgresql(payload: dict, message: Message, conn: psycopg.Connection[Any]) -> None:  # type: ignore[type-arg]
            _handle(conn, LINE.replace("?", "%s"), payload, message, spec)


def _handle(conn: Any, line: str, payload: dict[str, Any], message: Message, spec: Spec) -> None:
    conn.execute(line, (payload["case"], payload["version"], payload["case"]))
    if fails(message, spec.failing):
        raise Broken


async def work(spec: Spec) -> None:
    """Run the app until SIGTERM."""
    app = App(spec.url, heartbeat_seconds=0.5, lapse_seconds=5.0, drain_seconds=20)
    # Kills are random here: that one message is in hand when four processes die is no crash loop.
    register(
        consumer(
            app, spec.by, concurrency=spec.workers, batch=spec.batch, crash_limit=1000,
            retry=Backoff(attempts=1000, base_seconds=0.02, max_seconds=0.1),
        ),
        spec,
    )  # fmt: skip
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with app.running():
        await stop.wait()


def main(spec: dict[str, Any]) -> None:
    """In the child."""
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    asyncio.run(work(msgspec.convert(spec, Spec)))
