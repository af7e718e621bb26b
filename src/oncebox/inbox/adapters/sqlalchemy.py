"""SQLAlchemy 2: sessions and connections, blocking and async, over psycopg, psycopg2, asyncpg and SQLite.

Statements go through `Connection.exec_driver_sql` only: a claim through the raw driver connection
survives a rollback, and `Session.execute` would flush the user's pending objects first.
"""

from __future__ import annotations

import weakref
from typing import Any

from oncebox.core.guard import View
from oncebox.core.queries import Queries
from oncebox.engines.queries import load
from oncebox.errors import UnknownHandle
from oncebox.inbox.adapters import views
from oncebox.inbox.adapters.base import Adapter, Statement, autocommit, named, numbered, positional, refusing
from oncebox.inbox.adapters.sqlite3 import commits_itself
from oncebox.message import MessageKey

_DRIVERS = {
    "psycopg": (positional, views.libpq),
    "psycopg2": (positional, views.libpq),
    "asyncpg": (numbered, views.asyncpg),
    "pysqlite": (named, views.sqlite),
    "aiosqlite": (named, views.sqlite),
}
_claimed: weakref.WeakKeyDictionary[Any, dict[tuple[Queries, MessageKey], weakref.ref[Any]]] = (
    weakref.WeakKeyDictionary()
)
"""Per outer Connection: which session transaction claimed a key, for sessions that were bound to it."""


class SqlalchemyConnection(Adapter):
    """A Connection; `BEGIN` may be implicit."""

    connection: Any = None
    session: Any = None
    session_root: Any = None

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def join(self, schema: str) -> Any:
        return self._adopt(self.handle, schema)

    def _adopt(self, connection: Any, schema: str) -> Queries:
        driver = connection.dialect.driver.removesuffix("_async")
        if driver not in _DRIVERS:
            raise UnknownHandle(
                f"the guard knows SQLAlchemy over {', '.join(_DRIVERS)}; this engine's driver is {driver}"
            )
        self.connection = connection
        self.dialect = connection.dialect.name
        self.style, self._view = _DRIVERS[driver]
        self.raw = connection.connection.driver_connection
        if _commits_itself(connection) and not self._view(self.raw).open:
            raise autocommit('use an engine or connection whose isolation_level is not "AUTOCOMMIT"')
        self.queries = load(self.dialect, schema)
        return self.queries

    def view(self) -> View:
        connection = self.connection
        # A closed Connection has given its driver's connection back: somebody else's transaction
        # may be on it by now.
        if connection.closed or connection.invalidated:
            return View(open=False)
        return self._view(self.raw)

    def send(self, sent: list[Statement], *, fetch: bool = False) -> Any:
        rows: list[tuple[Any, ...]] = []
        with refusing:
            for text, params in sent:
                result = self.connection.exec_driver_sql(text, params)
                if fetch:
                    rows += [tuple(row) for row in result.fetchall()]
                result.close()
        return rows


class SqlalchemySession(SqlalchemyConnection):
    """A Session or scoped_session; joins the connection of its default bind."""

    def __init__(self, handle: Any) -> None:
        self.session = handle.registry() if hasattr(handle, "registry") else handle

    def join(self, schema: str) -> Any:
        return self._adopt(self.session.connection(), schema)

    def opened(self, key: MessageKey) -> None:
        self.session_root = self.session.get_transaction()
        if hasattr(self.session.bind, "exec_driver_sql"):
            # Bound to a Connection, whose transaction goes on when the session commits.
            keys = _claimed.setdefault(self.connection, {})
            keys[self.queries, key] = weakref.ref(self.session_root)

    def settled(self, key: MessageKey) -> bool:
        claimed = _claimed.get(self.connection, {}).get((self.queries, key))
        return claimed is not None and claimed() is not self.session.get_transaction()

    def view(self) -> View:
        if self.session_root is not None and self.session.get_transaction() is not self.session_root:
            return View(open=False)
        return super().view()


class AsyncSqlalchemyConnection(SqlalchemyConnection):
    """An AsyncConnection."""

    awaits = True

    async def join(self, schema: str) -> Any:
        return await self.handle.run_sync(self._adopt, schema)

    async def send(self, sent: list[Statement], *, fetch: bool = False) -> Any:
        return await self.handle.run_sync(lambda _: SqlalchemyConnection.send(self, sent, fetch=fetch))


class AsyncSqlalchemySession(SqlalchemySession):
    """An AsyncSession or async_scoped_session."""

    awaits = True

    def __init__(self, handle: Any) -> None:
        self.handle = handle.registry() if hasattr(handle, "registry") else handle
        self.session = self.handle.sync_session

    async def join(self, schema: str) -> Any:
        self.handle = await self.handle.connection()
        return await self.handle.run_sync(self._adopt, schema)

    async def send(self, sent: list[Statement], *, fetch: bool = False) -> Any:
        return await self.handle.run_sync(lambda _: SqlalchemyConnection.send(self, sent, fetch=fetch))


def _commits_itself(connection: Any) -> bool:
    """Whether the driver commits every statement. SQLAlchemy's own word for it is a setting of its
    connection object, which says READ COMMITTED under AUTOCOMMIT; the dialect looks at the driver."""
    dbapi_connection = connection.connection.dbapi_connection
    raw = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        return commits_itself(getattr(raw, "_conn", raw))
    detect = getattr(connection.dialect, "detect_autocommit_setting", None)  # since 2.0.43
    return bool(detect(dbapi_connection) if detect else getattr(dbapi_connection, "autocommit", False))
