"""One way to write a handler's body for every driver: `async def`, with `?` for parameters.

On a blocking driver nothing in such a body ever waits, so it is run to its end in one go.
"""

import sqlite3
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

import asyncpg
import psycopg

T = TypeVar("T")


class Kind(NamedTuple):
    """An engine, and how it is reached."""

    name: str
    engine: str
    is_async: bool
    connection: Any
    """What a handler annotates to get its connection."""
    scheme: str


KINDS = {
    kind.name: kind
    for kind in (
        Kind("sqlite", "sqlite", False, sqlite3.Connection, "sqlite"),
        Kind("sqlite-async", "sqlite", True, sqlite3.Connection, "sqlite"),
        Kind("psycopg", "postgresql", False, psycopg.Connection, "postgresql"),
        Kind("psycopg-async", "postgresql", True, psycopg.AsyncConnection, "postgresql"),
        Kind("asyncpg", "postgresql", True, asyncpg.Connection, "postgresql+asyncpg"),
    )
}


class Db:
    """A handler's connection with one spelling. `raw` is the driver's own."""

    def __init__(self, kind: Kind, raw: Any) -> None:
        self.kind = kind
        self.raw = raw

    async def run(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """Perform one statement; its rows, if it has any."""
        if self.kind.name == "asyncpg":
            return [tuple(row) for row in await self.raw.fetch(numbered(sql), *params)]
        if self.kind.engine == "sqlite":
            return list(self.raw.execute(sql, params).fetchall())
        cursor = self.raw.execute(sql.replace("?", "%s"), params or None)
        if self.kind.is_async:
            cursor = await cursor
            return list(await cursor.fetchall()) if cursor.description else []
        return list(cursor.fetchall()) if cursor.description else []

    async def effect(self, key: str, note: str = "") -> None:
        """Leave a trace that is never merged with another: one row per time this ran and committed."""
        await self.run("INSERT INTO shop_effect (key, note) VALUES (?, ?)", key, note)

    async def script(self, sql: str) -> None:
        """Several statements in one text, as a handler might send them."""
        if self.kind.engine == "sqlite":
            self.raw.executescript(sql)
        elif self.kind.is_async:
            await self.raw.execute(sql)
        else:
            self.raw.execute(sql)


def numbered(sql: str) -> str:
    """`?` as asyncpg wants it."""
    head, *rest = sql.split("?")
    return head + "".join(f"${n}{part}" for n, part in enumerate(rest, 1))


def at_once(body: Coroutine[Any, Any, T]) -> T:
    """Run a body that never waits."""
    try:
        body.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    body.close()
    raise AssertionError("a body on a blocking driver must not wait")
