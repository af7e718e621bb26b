"""What handlers do in these tests: append to a table without a unique index; and what it all left."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg

from oncebox import Discard, Message, Tx
from oncebox.consumer import Consumer
from oncebox.drivers.database import Database
from tests.crash.checker import Attempt, Dead, Key, Ledger, Queued, Tables
from tests.crash.events import Events
from tests.waiting import eventually

COLUMNS = "(consumer, source, message_id, pid)"
AGAIN = "again"
"""Stands for the source of an effect that comes from a replay."""


def create_table(url: str) -> None:
    """The effects table: append-only, and nothing in it stops a second effect."""
    number = "INTEGER PRIMARY KEY" if url.startswith("sqlite") else "bigserial PRIMARY KEY"
    text = f"CREATE TABLE IF NOT EXISTS effects (n {number}, consumer text, source text, message_id text, pid integer)"
    with closing(reader(url)) as connection:
        connection.execute(text)
        connection.execute("CREATE INDEX IF NOT EXISTS effects_of ON effects (consumer)")


def reader(url: str) -> Any:
    """A plain connection for setting up and for looking."""
    database = Database(url)
    if database.dialect == "sqlite":
        return sqlite3.connect(database._target, timeout=10, isolation_level=None)
    return psycopg.connect(database._target, autocommit=True)


class Behaviour:
    """What each message's handler does besides its effect, by id; `*` is for all others.

    A number: it fails that often before it succeeds. `forever`: it always fails. `once`: it fails the
    first time ever, whatever its attempts are counted as. `discard`: it is not wanted. `kill`: its process
    dies. `hang`: it waits for the gate. `swallow`: it hides an error.
    """

    def __init__(
        self, events: Events, words: dict[str, Any], gate: Path | None = None, sends: str = ""
    ) -> None:
        self.events = events
        self.words = words
        self.gate = gate
        self.sends = sends

    def word(self, message: Message) -> Any:
        """What this message's handler is to do."""
        return self.words.get(message.id, self.words.get("*", 0))

    def start(self, message: Message, tx: Tx) -> tuple[str, str, str, int]:
        """Note the start; gives the effect's row."""
        if message.replay:
            return (tx.consumer, AGAIN, message.id, os.getpid())
        self._log("start", message, tx, attempt=tx.attempt)
        if self.sends == "publish":
            tx.publish("out", {}, id=f"{tx.consumer}/{message.id}", key="k")
        elif self.sends == "send":
            tx.send(f"{tx.consumer}-next", "t", {}, id=message.id)
        return (tx.consumer, message.source, message.id, os.getpid())

    def hang(self, message: Message, tx: Tx) -> None:
        """Wait at the gate, if the message is to."""
        if self.word(message) == "hang":
            assert self.gate is not None
            self._log("hanging", message, tx)
            eventually(self.gate.exists, 60)
            self._log("let go", message, tx)

    def end(self, message: Message, tx: Tx) -> None:
        """Die or fail, if the message is to."""
        word = self.word(message)
        if word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "discard":
            self._log("raised", message, tx)
            raise Discard("not wanted")
        if (
            word == "forever"
            or (isinstance(word, int) and tx.attempt <= word)
            or (word == "once" and not self.events.all("raised"))
        ):
            self._log("raised", message, tx)
            raise RuntimeError(f"attempt {tx.attempt} fails")

    def _log(self, event: str, message: Message, tx: Tx, **details: Any) -> None:
        self.events.log(event, consumer=tx.consumer, source=message.source, id=message.id, **details)


def register(consumer: Consumer, variant: str, behaviour: Behaviour, **options: Any) -> None:
    """Give the consumer a handler that writes one effect, in the variant's way."""
    decorate = consumer.handler("long" if options.get("long") else "t", **options)
    percent = f"INSERT INTO effects {COLUMNS} VALUES (%s, %s, %s, %s)"

    def sqlite(message: Message, tx: Tx, conn: sqlite3.Connection) -> dict[str, str]:
        conn.execute(f"INSERT INTO effects {COLUMNS} VALUES (?, ?, ?, ?)", behaviour.start(message, tx))
        behaviour.hang(message, tx)
        behaviour.end(message, tx)
        return {"done": message.id}

    async def sqlite_async(message: Message, tx: Tx, conn: sqlite3.Connection) -> dict[str, str]:
        return sqlite(message, tx, conn)

    def blocking(message: Message, tx: Tx, conn: psycopg.Connection) -> dict[str, str]:
        conn.execute(percent, behaviour.start(message, tx))
        if behaviour.word(message) == "swallow":
            swallow(conn)
        behaviour.hang(message, tx)
        behaviour.end(message, tx)
        return {"done": message.id}

    def swallow(conn: psycopg.Connection) -> None:
        try:
            conn.execute("SELECT 1/0")
        except psycopg.Error:
            return

    async def awaiting(message: Message, tx: Tx, conn: psycopg.AsyncConnection) -> dict[str, str]:
        await conn.execute(percent, behaviour.start(message, tx))
        await asyncio.to_thread(behaviour.hang, message, tx)
        behaviour.end(message, tx)
        return {"done": message.id}

    async def with_asyncpg(message: Message, tx: Tx, conn: asyncpg.Connection) -> dict[str, str]:
        await conn.execute(
            f"INSERT INTO effects {COLUMNS} VALUES ($1, $2, $3, $4)", *behaviour.start(message, tx)
        )
        await asyncio.to_thread(behaviour.hang, message, tx)
        behaviour.end(message, tx)
        return {"done": message.id}

    handlers: dict[str, Callable[..., Any]] = {
        "sqlite": sqlite, "sqlite-async": sqlite_async, "psycopg": blocking, "psycopg-async": awaiting,
        "asyncpg": with_asyncpg,
    }  # fmt: skip
    decorate(handlers[variant])


_EVERYTHING = (
    ("effects", "n, NULL, NULL, NULL, NULL, NULL"),
    ("PREFIXledger", "seq, fingerprint, state, NULL, NULL, NULL"),
    ("PREFIXqueue", "seq, payload, attempts, deaths, NULL, NULL"),
    ("PREFIXdead", "NULL, fingerprint, attempts, NULL, payload, reason"),
    ("PREFIXattempt", "NULL, NULL, CASE WHEN died THEN 1 ELSE 0 END, NULL, NULL, NULL"),
)
"""By table: a number, bytes, two more numbers, more bytes, and a text."""
_CASTS = "NULL::bigint, NULL::bytea, NULL::integer, NULL::integer, NULL::bytea, NULL::text"


def _everything(prefix: str, mark: str) -> str:
    """One statement for all that is asked about a consumer."""
    parts = [
        f"SELECT {number}, consumer, source, message_id, {columns} FROM {table} WHERE consumer = {mark}"
        for number, (table, columns) in enumerate(_EVERYTHING)
    ]
    if mark != "?":
        parts.insert(0, f"SELECT 0, '', '', '', {_CASTS} WHERE false")
    return " UNION ALL ".join(parts).replace("PREFIX", prefix)


_LITE = _everything("oncebox_", "?")
_POSTGRES = _everything("oncebox.", "%s")


def tables(connection: Any, consumer: str) -> Tables:
    """Everything the database says about one consumer."""
    text = _LITE if isinstance(connection, sqlite3.Connection) else _POSTGRES
    found: list[list[tuple[Any, ...]]] = [[] for _ in _EVERYTHING]
    for number, *row in connection.execute(text, (consumer,) * len(_EVERYTHING)).fetchall():
        found[number].append(tuple(row))
    effects, *others = found
    ledger, queue, dead, attempts = (sorted(rows, key=lambda row: row[2]) for rows in others)
    return Tables(
        effects=[_key(row) for row in sorted(effects, key=lambda row: row[3])],
        ledger=[Ledger(_key(row), bytes(row[4]), row[5], row[3]) for row in ledger],
        queue=[Queued(_key(row), row[3], row[5], row[6], bytes(row[4])) for row in queue],
        dead=[Dead(_key(row), row[8], bytes(row[4]), row[5], bytes(row[7])) for row in dead],
        attempts=[Attempt(_key(row), bool(row[5])) for row in attempts],
    )


def _key(row: tuple[Any, ...]) -> Key:
    return (row[0], row[1], row[2])
