"""SQLite through SQLAlchemy, over sqlite3 or aiosqlite.

SQLAlchemy leaves BEGIN to the driver, which begins late and deferred: a read that turns into a write
then fails at once if somebody else wrote in between. So for the length of a transaction the driver's
connection is told to begin nothing, and BEGIN IMMEDIATE is ours. Whatever was changed on it (this,
two pragmas, an authorizer that refuses a handler's COMMIT) is put back before the pool has it again.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.util import greenlet_spawn

from oncebox import errors
from oncebox.core.queries import Queries
from oncebox.core.steps import Begin, Call, Commit
from oncebox.drivers.session import Settings
from oncebox.drivers.sqlalchemy import outcomes
from oncebox.drivers.sqlalchemy.awaiting import Awaiting
from oncebox.drivers.sqlalchemy.given import Given, autocommit
from oncebox.drivers.sqlalchemy.session import SqlAlchemySession
from oncebox.drivers.sqlalchemy.turn import Turn
from oncebox.drivers.sqlite import parameters, split
from oncebox.drivers.unfinished import end_unfinished
from oncebox.engines import sqlite
from oncebox.errors import ConfigError

_NORMAL, _FULL = 1, 2
_MARK = "oncebox"
"""In a pooled connection's info while a transaction of ours is on it."""


def path_of(engine: Engine) -> str:
    """The file, as the engine opens it."""
    return os.path.abspath(str(engine.url.database))


def examine(engine: Engine) -> dict[str, Any]:
    """Put the file in WAL; ConfigError if the engine's connections have no transactions, or another file."""
    with engine.connect() as connection:
        connection.begin()
        driver = connection.connection.driver_connection
        assert driver is not None
        if driver.isolation_level is None and not driver.in_transaction:
            raise autocommit()
        listed = connection.exec_driver_sql("PRAGMA database_list").all()
        opened = next((row[2] for row in listed if row[1] == "main"), "")
        if os.path.realpath(opened) != os.path.realpath(path_of(engine)):
            raise ConfigError(
                f"this engine opens {opened or 'a database in memory'}, but its URL names {path_of(engine)}: "
                "the runtime's own connections are made from the URL, so it has to name the file"
            )
        if driver.in_transaction:
            connection.exec_driver_sql("ROLLBACK")
        if connection.exec_driver_sql("PRAGMA journal_mode=WAL").scalar() != "wal":
            raise ConfigError(f"SQLite can't use write-ahead logging for {path_of(engine)}")
    return {}


class SqliteTransactions(SqlAlchemySession):
    """What a transaction on SQLite opens and ends with."""

    def __init__(self, given: Given, queries: Queries, settings: Settings, options: dict[str, Any]) -> None:
        super().__init__(given, queries, settings, options)
        self.turn: Turn = Turn(path_of(given.engine), settings.lock_timeout_seconds)
        self._borrowed: list[Callable[[], object]] = []
        """How to put back what was changed on the driver's connection, last change first."""
        self._denied = False
        """Whether a handler sent a COMMIT or ROLLBACK that nobody but the authorizer has seen."""

    def _forget(self) -> None:
        super()._forget()
        self._denied = False

    def _enter(self, step: Begin) -> None:
        if self._driver.in_transaction:
            self._send("ROLLBACK")  # a listener of the app's begins, deferred
        dbapi: Any = self._open.connection.dbapi_connection
        self._borrow(partial(setattr, dbapi, "isolation_level", dbapi.isolation_level))
        dbapi.isolation_level = None
        self._pragma("busy_timeout", int(self.settings.lock_timeout_seconds * 1000))
        self._pragma("synchronous", _NORMAL if step.lazy or self.settings.side else _FULL)
        self._borrow(partial(_set_authorizer, dbapi, None))
        _set_authorizer(dbapi, self._authorize)
        self._send("BEGIN IMMEDIATE")
        self._send("SAVEPOINT oncebox_tx")

    def _leave(self, step: Commit) -> None:
        self._check_open()
        # Gone if SQLite rolled back by itself, or a handler found a way to commit.
        self._send("RELEASE oncebox_tx")

    def _authorize(self, action: int, *_: Any) -> int:
        if action == sqlite3.SQLITE_TRANSACTION and not self._ours:
            self._denied = True
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _check_open(self) -> None:
        if self._denied:
            raise outcomes.refused()
        # A full disk and INSERT OR ROLLBACK end the transaction unasked; the next statement would
        # be committed by itself.
        if not self._driver.in_transaction:
            raise outcomes.swallowed()

    def _pragma(self, name: str, value: int) -> None:
        before = self._on_driver(f"PRAGMA {name}")
        if before != value:
            self._borrow(partial(self._on_driver, f"PRAGMA {name}={before}"))
            self._on_driver(f"PRAGMA {name}={value}")

    def _on_driver(self, text: str) -> Any:
        """Past SQLAlchemy, which would begin a transaction first; a pragma needs none."""
        cursor = self._open.connection.cursor()
        try:
            cursor.execute(text)
            row = cursor.fetchone()
            return row[0] if row else None
        finally:
            cursor.close()

    def _borrow(self, give_back: Callable[[], object]) -> None:
        self._borrowed.append(give_back)

    def _restore_driver(self) -> None:
        while self._borrowed:
            self._borrowed.pop()()

    def _release(self) -> None:
        try:
            super()._release()
        finally:
            self._borrowed.clear()

    def vouch(self, call: Call) -> Any:
        """One synced commit puts everything committed before it on disk."""
        self.turn.take()
        return self._vouch(call)

    def _vouch(self, call: Call) -> list[tuple[Any, ...]]:
        self._begin(Begin(token=""))
        try:
            with self._translating():
                count = len(self._rows(call))
            self._finish(Commit(token=""))
        finally:
            self._rollback()
        return [(count,)]

    def _rows(self, call: Call) -> list[tuple[Any, ...]]:
        if not call.query.each:
            return self._fetched(call.query.text, parameters(call))[0]
        rows: list[tuple[Any, ...]] = []
        constants = parameters(call)
        for row in call.params["rows"]:
            params = {**constants, **row}
            got: list[tuple[Any, ...]] = []
            for statement in call.query.statements:
                got, columns = self._fetched(statement, params)
                if not got:
                    break
                params |= dict(zip(columns, got[0], strict=True))
            rows.extend(got)
        return rows

    def _fetched(self, text: str, params: dict[str, Any]) -> tuple[list[tuple[Any, ...]], list[str]]:
        result = self._send(text, params)
        if not result.returns_rows:
            return [], []
        columns = list(result.keys())
        # To the end: an open RETURNING cursor makes COMMIT fail.
        return [tuple(row) for row in result.all()], columns

    def _changed(self, call: Call) -> int:
        if call.query.each:
            return len(self._rows(call))
        result = self._send(call.query.text, parameters(call))
        changed = int(result.rowcount)
        if result.returns_rows:
            result.all()
        return changed

    def _script(self, text: str) -> None:
        for statement in split(text):
            self._send(statement).close()

    def _named(self, error: BaseException, committing: bool) -> errors.OnceboxError:
        if not isinstance(error, sqlite3.Error):
            return errors.DatabaseError(f"the driver refused ({type(error).__name__})")
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
            return outcomes.refused()
        if "no such savepoint: oncebox_tx" in str(error):
            return outcomes.ended()
        return sqlite.translate(error)

    def _lost(self, committing: bool) -> errors.OnceboxError:
        return errors.DatabaseUnavailable("SQLite's connection was closed")

    def _unreachable(self, error: BaseException) -> errors.OnceboxError:
        return unreachable(error)

    def cancel(self) -> None:
        driver = self._driver
        if driver is not None:
            driver.interrupt()


class AsyncSqliteTransactions(Awaiting, SqliteTransactions):
    """The same under an event loop."""

    def __init__(self, given: Given, queries: Queries, settings: Settings, options: dict[str, Any]) -> None:
        super().__init__(given, queries, settings, options)
        if not event.contains(given.engine.pool, "invalidate", _interrupt):
            event.listen(given.engine.pool, "invalidate", _interrupt)

    def _enter(self, step: Begin) -> None:
        info = self._open.info
        self._borrow(partial(info.pop, _MARK, None))
        info[_MARK] = True
        super()._enter(step)

    async def vouch(self, call: Call) -> Any:
        await self.turn.take_async()
        return await greenlet_spawn(self._vouch, call)


def _interrupt(dbapi: Any, record: Any, error: object) -> None:
    """A task was cancelled while it waited for a statement, and its connection is about to be closed. In
    aiosqlite's thread the statement would run on; and closing alone keeps the write lock for as long as
    somebody, such as a traceback, refers to a cursor."""
    if _MARK in record.info:
        driver = dbapi.driver_connection
        driver._conn.interrupt()
        rolled_back = asyncio.get_running_loop().create_future()
        rolled_back.add_done_callback(lambda future: future.cancelled() or future.exception())
        driver._tx.put_nowait((rolled_back, partial(_roll_back, driver._conn)))


def _roll_back(raw: sqlite3.Connection) -> None:
    raw.set_authorizer(None)
    end_unfinished(raw)
    raw.rollback()


def unreachable(error: BaseException) -> errors.OnceboxError:
    """Why the engine could not open its file."""
    cause = getattr(error, "orig", None) or error
    return errors.DatabaseUnavailable(f"SQLite can't open its file: {cause}")


def _set_authorizer(dbapi: Any, authorize: Callable[..., int] | None) -> None:
    if hasattr(dbapi, "run_async"):
        # aiosqlite works in a thread of its own.
        dbapi.run_async(lambda driver: driver._execute(driver._conn.set_authorizer, authorize))
    else:
        dbapi.set_authorizer(authorize)
