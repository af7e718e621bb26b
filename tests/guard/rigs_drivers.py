"""Rigs of the plain drivers: sqlite3, psycopg, asyncpg."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg

from tests.guard.rigs import Desk, Rig, ending


class Sqlite3(Rig):
    """Python's default: the first INSERT opens a transaction."""

    name = "sqlite3"
    engine = "sqlite"
    arguments: dict[str, Any] = {}  # noqa: RUF012 - one per class, never changed
    own_begin = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Desk]:
        connection = sqlite3.connect(self.url, **self.arguments)
        if self.own_begin:
            connection.execute("BEGIN IMMEDIATE")
        desk = Desk(connection, False, connection.execute)

        def rollback() -> None:
            # With autocommit=False, a transaction that ended by SQL leaves rollback() without one.
            if connection.in_transaction:
                connection.rollback()

        async with ending(desk, connection.commit, rollback, connection.close):
            yield desk

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Desk]:
        connection = sqlite3.connect(self.url, isolation_level=None)
        yield Desk(connection, False, connection.execute)
        connection.close()


class Sqlite3Explicit(Sqlite3):
    """isolation_level=None and a BEGIN by hand."""

    name = "sqlite3 with BEGIN by hand"
    arguments = {"isolation_level": None}  # noqa: RUF012
    own_begin = True


class Sqlite3Pep249(Sqlite3):
    """autocommit=False: always in a transaction (Python 3.12)."""

    name = "sqlite3 with autocommit=False"
    arguments = {"autocommit": False}  # noqa: RUF012

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Desk]:
        arguments: Any = {"autocommit": True}
        connection = sqlite3.connect(self.url, **arguments)
        yield Desk(connection, False, connection.execute)
        connection.close()


class Psycopg(Rig):
    """The first statement opens a transaction, commit() ends it."""

    name = "psycopg"
    engine = "postgresql"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Desk]:
        connection = psycopg.connect(self.url)
        desk = Desk(connection, False, lambda sql: connection.execute(sql.encode()))
        async with ending(desk, connection.commit, connection.rollback, connection.close):
            yield desk

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Desk]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield Desk(connection, False, lambda sql: connection.execute(sql.encode()))


class PsycopgBlock(Psycopg):
    """autocommit=True, and a transaction() block: as pools are often set up."""

    name = "psycopg with transaction()"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Desk]:
        with psycopg.connect(self.url, autocommit=True) as connection, connection.transaction():
            # psycopg refuses commit() in here, and so does the second with the first's autocommit.
            yield Desk(connection, False, lambda sql: connection.execute(sql.encode()), own_commit=False)


class AsyncPsycopg(Rig):
    name = "psycopg async"
    engine = "postgresql"
    awaits = True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Desk]:
        connection = await psycopg.AsyncConnection.connect(self.url)
        desk = Desk(connection, True, lambda sql: connection.execute(sql.encode()))
        async with ending(desk, connection.commit, connection.rollback, connection.close):
            yield desk

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Desk]:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            yield Desk(connection, True, lambda sql: connection.execute(sql.encode()))


class Asyncpg(Rig):
    name = "asyncpg"
    engine = "postgresql"
    awaits = True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Desk]:
        async with self.autocommit() as desk, desk.handle.transaction():
            yield desk

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Desk]:
        connection = await asyncpg.connect(self.url)
        try:
            yield Desk(connection, True, connection.execute, own_commit=False)
        finally:
            await connection.close()


class AsyncpgPool(Asyncpg):
    name = "asyncpg pool"

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Desk]:
        async with (
            asyncpg.create_pool(self.url, min_size=1, max_size=1) as pool,
            pool.acquire() as connection,
        ):
            yield Desk(connection, True, connection.execute, own_commit=False)


RIGS: list[type[Rig]] = [Sqlite3, Sqlite3Explicit, Psycopg, PsycopgBlock, AsyncPsycopg, Asyncpg, AsyncpgPool]
if sys.version_info >= (3, 12):
    RIGS.append(Sqlite3Pep249)
