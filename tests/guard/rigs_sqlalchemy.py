"""Rigs of SQLAlchemy: sessions and connections, over every driver the guard knows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.guard.rigs import Desk, Rig


class SqlalchemyRig(Rig):
    driver: str

    def engine_url(self) -> str:
        if self.engine == "sqlite":
            return f"sqlite+{self.driver}:///{self.url}"
        return self.url.replace("postgresql://", f"postgresql+{self.driver}://")

    def sync_engine(self, **words: Any) -> Engine:
        return create_engine(self.engine_url(), poolclass=NullPool, **words)

    def async_engine(self, **words: Any) -> AsyncEngine:
        return create_async_engine(self.engine_url(), poolclass=NullPool, **words)


class SessionRig(SqlalchemyRig):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Desk]:
        with Session(self.sync_engine()) as session:
            yield Desk(session, False, lambda sql: session.execute(text(sql)))
            session.commit()

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Desk]:
        with Session(self.sync_engine(isolation_level="AUTOCOMMIT")) as session:
            yield Desk(session, False, lambda sql: session.execute(text(sql)))


class ScopedSessionRig(SessionRig):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Desk]:
        registry = scoped_session(sessionmaker(self.sync_engine()))
        try:
            yield Desk(registry, False, lambda sql: registry.execute(text(sql)))
            registry.commit()
        finally:
            registry.remove()


class ConnectionRig(SqlalchemyRig):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Desk]:
        with self.sync_engine().connect() as connection:
            yield Desk(connection, False, lambda sql: connection.execute(text(sql)))
            connection.commit()

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Desk]:
        with self.sync_engine().connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            yield Desk(connection, False, lambda sql: connection.execute(text(sql)))


class AsyncSessionRig(SqlalchemyRig):
    awaits = True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Desk]:
        async with AsyncSession(self.async_engine()) as session:
            yield Desk(session, True, lambda sql: session.execute(text(sql)))
            await session.commit()

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Desk]:
        async with AsyncSession(self.async_engine(isolation_level="AUTOCOMMIT")) as session:
            yield Desk(session, True, lambda sql: session.execute(text(sql)))


class AsyncConnectionRig(SqlalchemyRig):
    awaits = True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Desk]:
        async with self.async_engine().connect() as connection:
            yield Desk(connection, True, lambda sql: connection.execute(text(sql)))
            await connection.commit()

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Desk]:
        async with self.async_engine(isolation_level="AUTOCOMMIT").connect() as connection:
            yield Desk(connection, True, lambda sql: connection.execute(text(sql)))


def rig(base: type[SqlalchemyRig], driver: str) -> type[Rig]:
    """A kind of handle over a driver."""
    engine = "sqlite" if "sqlite" in driver else "postgresql"
    label = base.__name__.removesuffix("Rig")
    members = {"driver": driver, "engine": engine, "name": f"sqlalchemy {label} {driver}"}
    return type(f"{base.__name__}_{driver}", (base,), members)


RIGS: list[type[Rig]] = [
    rig(SessionRig, "psycopg"),
    rig(SessionRig, "pysqlite"),
    rig(ScopedSessionRig, "pysqlite"),
    rig(ConnectionRig, "psycopg"),
    rig(ConnectionRig, "pysqlite"),
    rig(AsyncSessionRig, "psycopg"),
    rig(AsyncSessionRig, "asyncpg"),
    rig(AsyncSessionRig, "aiosqlite"),
    rig(AsyncConnectionRig, "asyncpg"),
    rig(AsyncConnectionRig, "aiosqlite"),
]
if find_spec("psycopg2") is not None:
    RIGS.append(rig(SessionRig, "psycopg2"))
