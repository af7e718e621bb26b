"""An app's database by its engine: which connections serve what."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import exc
from sqlalchemy.util import greenlet_spawn

from oncebox.core.queries import Queries
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings
from oncebox.drivers.sqlalchemy import outcomes, own, postgres, sqlite
from oncebox.drivers.sqlalchemy.given import given
from oncebox.drivers.sqlite import AsyncSqliteSession, SqliteSession
from oncebox.engines.queries import load
from oncebox.errors import ConfigError


class SqlAlchemyDatabase(Database):
    """The database of a sessionmaker or an engine, blocking or async. Opens nothing when made.

    Effects' transactions are on the engine's pooled connections; the runtime's own are made by the
    engine's recipe outside its pool (for SQLite: from the URL's file). A blocking engine serves `def`
    handlers, an async one `async def` ones. ConfigError says what can't be used, and why.
    """

    def __init__(self, database: Any, *, schema: str = "oncebox") -> None:
        self.given = given(database)
        engine = self.given.engine
        self.dialect = engine.dialect.name
        self.driver = self.given.driver
        self.queries: Queries = load(self.dialect, schema)
        self.schema = schema
        self.pooled = False
        self._options: dict[str, Any] | None = None
        url = engine.url
        self._target = (
            sqlite.path_of(engine)
            if self.dialect == "sqlite"
            else f"postgresql://{url.host or ''}{f':{url.port}' if url.port else ''}/{url.database or ''}"
        )

    def __repr__(self) -> str:
        return f"<SqlAlchemyDatabase {self.place} over {self.given.engine.dialect.driver}>"

    @property
    def serves_sync(self) -> bool:
        """Whether plain `def` handlers can be served."""
        return self.given.async_engine is None

    def connect(self, settings: Settings) -> Session:
        """A blocking session, or DatabaseUnavailable; ConfigError on an async engine."""
        if not self.serves_sync:
            raise ConfigError(
                "an async engine has no blocking connections: use async def handlers and await process(…), or "
                "give the app a sessionmaker of create_engine(…)"
            )
        options = {} if settings.side else self._examined()
        if self.dialect == "sqlite":
            if settings.handlers:
                return sqlite.SqliteTransactions(self.given, self.queries, settings, options)
            return SqliteSession(self._target, self.queries, settings)
        if settings.handlers:
            return postgres.PostgresTransactions(self.given, self.queries, settings, options)
        return own.connect(self.given, self.queries, settings)

    async def connect_async(self, settings: Settings) -> Session:
        """An async session, or DatabaseUnavailable. On a blocking engine it is one of the runtime's own."""
        # The heartbeat has a loop of its own, where an async engine's pool must not be used.
        options = {} if settings.side else await self._examined_async()
        if self.dialect == "sqlite":
            if settings.handlers and not self.serves_sync:
                return sqlite.AsyncSqliteTransactions(self.given, self.queries, settings, options)
            return AsyncSqliteSession(self._target, self.queries, settings)
        if settings.handlers and not self.serves_sync:
            return postgres.AsyncPostgresTransactions(self.given, self.queries, settings, options)
        return await own.connect_async(self.given, self.queries, settings)

    def _examined(self) -> dict[str, Any]:
        """What a first connection told about the engine: options for its transactions, or ConfigError."""
        if self._options is None:
            self._options = self._examine()
        return self._options

    async def _examined_async(self) -> dict[str, Any]:
        if self._options is None:
            await (asyncio.to_thread if self.serves_sync else greenlet_spawn)(self._examined)
        return self._examined()

    def _examine(self) -> dict[str, Any]:
        try:
            if self.dialect == "sqlite":
                return sqlite.examine(self.given.engine)
            return postgres.examine(self.given.engine)
        except exc.TimeoutError as error:
            raise outcomes.pool_is_empty() from error
        except Exception as error:
            if not outcomes.is_drivers(error):
                raise
            if self.dialect == "sqlite":
                raise sqlite.unreachable(error) from None
            raise postgres.unreachable(self.given, error) from None

    def handle_kinds(self) -> frozenset[str]:
        """What handlers may ask for: the app's session, or the connection it works on."""
        colour = "" if self.serves_sync else "async-"
        return frozenset({f"sqlalchemy-{colour}session", f"sqlalchemy-{colour}connection"})
