"""sqlite3: WAL, synchronous=FULL, one writer. Handlers get the connection itself.

There are no deferred triggers here to refuse a handler's COMMIT, so the connection's authorizer
does; a savepoint that must still be there at the end catches what the authorizer can't see
(an automatic rollback after a full disk or INSERT OR ROLLBACK).
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Self

import msgspec

from oncebox import errors
from oncebox.core.queries import Queries
from oncebox.core.steps import Begin, Call, Commit, Execute
from oncebox.drivers.session import MATTERS, Settings
from oncebox.drivers.unfinished import end_unfinished
from oncebox.engines import sqlite

_BEGIN = "BEGIN IMMEDIATE /* oncebox */"
_COMMIT = "COMMIT /* oncebox */"
_ROLLBACK = "ROLLBACK /* oncebox */"
_writers: dict[str, threading.Lock] = {}
_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Lock]] = (
    weakref.WeakKeyDictionary()
)


def parameters(call: Call, row: dict[str, Any] | None = None) -> dict[str, Any]:
    """The call's parameters; lists become JSON, which is how SQLite takes arrays."""
    params = {
        name: msgspec.json.encode(value).decode() if type(value) is list else value
        for name, value in call.params.items()
        if name != "rows"
    }
    return params if row is None else {**params, **row}


class _Cursor(sqlite3.Cursor):
    """Remembers on its connection that a statement failed: SQLite undoes that statement and goes on, so that
    nothing else tells an error that a handler swallowed. Going back to a savepoint settles it."""

    connection: _Connection

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        if self.connection.failed:
            self._refuse_outside()
        try:
            _execute(self, sql, parameters)
        except sqlite3.Error:
            self.connection.failed = True
            raise
        if self.connection.failed and undoes(sql):
            self.connection.failed = False
        return self

    def executemany(self, sql: str, parameters: Any, /) -> Self:
        self._refuse_outside()
        try:
            super().executemany(sql, parameters)
        except sqlite3.Error:
            self.connection.failed = True
            raise
        return self

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        self._refuse_outside()
        try:
            super().executescript(script)
        except sqlite3.Error:
            self.connection.failed = True
            raise
        return self

    def _refuse_outside(self) -> None:
        """After INSERT OR ROLLBACK or a full disk no transaction is open: what came next would be committed at once."""
        connection = self.connection
        if connection.failed and not connection.ours and not connection.in_transaction:
            raise sqlite3.OperationalError(
                "SQLite has rolled the transaction back after an error that the handler swallowed; let that error out"
            )


class _Connection(sqlite3.Connection):
    failed = False
    ours = True
    """Not a handler's at the moment."""

    def cursor(self, factory: Any = _Cursor) -> Any:
        return super().cursor(factory)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        cursor: _Cursor = _cursor(self, _Cursor)
        if self.failed:
            return cursor.execute(sql, parameters)
        try:
            return _execute(cursor, sql, parameters)
        except sqlite3.Error:
            self.failed = True
            raise

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        return super().cursor(_Cursor).executemany(sql, parameters)

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        return super().cursor(_Cursor).executescript(script)


_execute, _cursor = sqlite3.Cursor.execute, sqlite3.Connection.cursor
"""A handler's statement passes here, and `super()` would be asked for it each time."""


def undoes(sql: str) -> bool:
    """Whether a statement goes back to a savepoint."""
    words = sql.split(None, 3)[:3]
    return [word.upper() for word in words[:1]] == ["ROLLBACK"] and "TO" in (
        word.upper() for word in words[1:]
    )


def unreachable(path: str, error: sqlite3.Error) -> errors.DatabaseUnavailable:
    """Why the file can't be opened; SQLite itself does not tell a missing folder from other causes."""
    folder = Path(path).parent
    why = str(error) if folder.is_dir() else f"there is no folder {str(folder)!r}"
    return errors.DatabaseUnavailable(f"SQLite can't open its file: {why}")


class SqliteSession:
    """A held sqlite3 connection. Writers of one process take turns by a lock, since SQLite's own
    waiting sleeps and is not fair; writers of other processes are waited for by SQLite."""

    broken = False

    def __init__(self, path: str, queries: Queries, settings: Settings) -> None:
        self.queries = queries
        self.settings = settings
        self.path = path
        self._holding = False
        self._interrupted = False
        self._lazy = settings.side
        self.raw: _Connection
        self._writer = _writers.setdefault(path, threading.Lock())
        try:
            self.raw = sqlite3.connect(
                path,
                isolation_level=None,
                check_same_thread=False,
                timeout=settings.lock_timeout_seconds,
                factory=_Connection,
            )
            self.raw.execute("PRAGMA journal_mode=WAL")
            self.raw.execute(f"PRAGMA synchronous={'NORMAL' if settings.side else 'FULL'}")
        except sqlite3.Error as error:
            raise unreachable(path, error) from None
        self.raw.set_authorizer(self._authorize)

    def _authorize(self, action: int, *_: Any) -> int:
        if action == sqlite3.SQLITE_TRANSACTION and not self.raw.ours:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def handle(self, kind: str | None = None) -> sqlite3.Connection:
        """The connection, from now on not allowed to begin, commit or roll back by itself."""
        self.raw.ours = False
        self.raw.failed = False
        return self.raw

    def handled(self) -> None:
        """The handler has returned. Its swallowed error is its own, not its neighbour's in a batch."""
        try:
            if not self.raw.in_transaction:
                raise self._aborted()
        except sqlite3.ProgrammingError as error:
            raise self.explain(error) from error
        if self.raw.failed:
            raise errors.TransactionAborted(
                "a database error inside the handler was swallowed; let it out, or set a savepoint and go back to it"
            )

    def begin(self, step: Begin) -> Any:
        self._take_turn(self.settings.lock_timeout_seconds)
        return self._begun(step)

    def _take_turn(self, seconds: float) -> None:
        self.raw.ours = True
        if not self._holding:
            if not self._writer.acquire(timeout=seconds):
                raise errors.LockBusy("another worker of this process holds SQLite's write lock")
            self._holding = True

    def _begun(self, step: Begin) -> int:
        try:
            self._durability(step.lazy)
            self.raw.execute(_BEGIN)
            self.raw.execute("SAVEPOINT oncebox_tx")
            return self._calls(step.calls)
        except BaseException as error:
            self.rollback()
            if isinstance(error, sqlite3.Error):
                raise sqlite.translate(error) from error
            raise

    def _durability(self, lazy: bool) -> None:
        lazy = lazy or self.settings.side
        if lazy != self._lazy:
            self.raw.execute(f"PRAGMA synchronous={'NORMAL' if lazy else 'FULL'}")
            self._lazy = lazy

    def _calls(self, calls: tuple[Call, ...]) -> int:
        changed = 0
        for call in calls:
            if call.query.each:
                changed = len(self._rows(call))
            else:
                cursor = self.raw.execute(call.query.text, parameters(call))
                cursor.fetchall()
                changed = cursor.rowcount
        return changed

    def _rows(self, call: Call) -> list[tuple[Any, ...]]:
        if not call.query.each:
            # Fetched to the end: an open RETURNING cursor makes COMMIT fail.
            return self.raw.execute(call.query.text, parameters(call)).fetchall()
        if call.query.whole:
            return self._whole(call)
        rows: list[tuple[Any, ...]] = []
        constants = parameters(call)
        for row in call.params["rows"]:
            params = {**constants, **row}
            got: list[tuple[Any, ...]] = []
            for statement in call.query.statements:
                cursor = self.raw.execute(statement, params)
                got = cursor.fetchall()
                if not got:
                    break
                params |= dict(zip((column[0] for column in cursor.description), got[0], strict=True))
            rows.extend(got)
        return rows

    def _whole(self, call: Call) -> list[tuple[Any, ...]]:
        """Many rows with one statement, which is bound, run and read once."""
        query, rows, constants = call.query, call.params["rows"], parameters(call)
        got: list[tuple[Any, ...]] = []
        for at in range(0, len(rows), sqlite.ROWS_MAX):
            some = rows[at : at + sqlite.ROWS_MAX]
            values = [
                constants[name] if name in constants else row[name] for row in some for name in query.order
            ]
            got += self.raw.execute(sqlite.whole(query, len(some)), values).fetchall()
        return got

    def execute(self, step: Execute) -> int:
        self.raw.ours = True
        try:
            return self._calls(step.calls)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def fetch(self, call: Call) -> list[tuple[Any, ...]]:
        self.raw.ours = True
        try:
            return self._rows(call)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: sqlite3.Error) -> errors.OnceboxError:
        if self._holding and not self.raw.in_transaction:
            return self._aborted()
        return sqlite.translate(error)

    def side(self, call: Call) -> Any:
        self._take_turn(self.settings.lock_timeout_seconds)
        try:
            return self._rows(call)
        except sqlite3.Error as error:
            raise sqlite.translate(error) from error
        finally:
            self._release()

    def vouch(self, call: Call) -> list[tuple[Any, ...]]:
        """One synced commit puts everything committed before it on disk."""
        self._take_turn(self.settings.lock_timeout_seconds)
        try:
            self._durability(False)
            self.raw.execute(_BEGIN)
            count = len(self._rows(call))
            self.raw.execute(_COMMIT)
        except sqlite3.Error as error:
            raise sqlite.translate(error) from error
        finally:
            self.rollback()
        return [(count,)]

    def save(self, first: bool) -> None:
        self.raw.ours = True
        if not first:
            self.raw.execute("RELEASE oncebox_batch")
        self.raw.execute("SAVEPOINT oncebox_batch")

    def restore(self) -> None:
        self.raw.ours = True
        self._get_over_interrupt()
        try:
            self.raw.execute("ROLLBACK TO oncebox_batch")
        except sqlite3.Error as error:
            raise self._aborted() from error

    def commit(self, step: Commit) -> Any:
        self._finish(step)
        self._release()
        return self.begin(step.then) if step.then is not None else 0

    def _finish(self, step: Commit) -> None:
        self.raw.ours = True
        try:
            if not self.raw.in_transaction:
                raise self._aborted()
        except sqlite3.ProgrammingError as error:
            raise self.explain(error) from error
        try:
            self._calls(step.calls)
            if not self.raw.in_transaction:
                raise self._aborted()
            self.raw.execute("RELEASE oncebox_tx")
            self.raw.execute(_COMMIT)
        except sqlite3.Error as error:
            if "no such savepoint" in str(error):
                raise errors.TransactionEnded(
                    "the handler ended the transaction by itself; the runtime does that after it returns"
                ) from error
            raise self._translated(error) from error

    def _aborted(self) -> errors.TransactionAborted:
        return errors.TransactionAborted(
            "a database error inside the handler was swallowed after SQLite had rolled the transaction back; "
            "let the error out"
        )

    def rollback(self) -> Any:
        self.raw.ours = True
        try:
            self._get_over_interrupt()
            if self.raw.in_transaction:
                self.raw.execute(_ROLLBACK)
        except sqlite3.Error:
            self.broken = True
        finally:
            self._release()

    def _release(self) -> None:
        if self._holding:
            self._holding = False
            self._writer.release()

    def cancel(self) -> None:
        self._interrupted = True
        self.raw.interrupt()

    def _get_over_interrupt(self) -> None:
        if self._interrupted:
            self._interrupted = False
            end_unfinished(self.raw)

    def explain(self, error: BaseException) -> BaseException:
        """What a handler's error means to its transaction: the flow's name for it, or the error itself."""
        if not isinstance(error, sqlite3.Error):
            return error
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
            return errors.TransactionEnded(
                "the handler tried to begin, commit or roll back by itself; the runtime does that"
            )
        if isinstance(error, sqlite3.ProgrammingError) and "closed database" in str(error):
            self.broken = True
            return errors.TransactionEnded("the handler closed the connection; it belongs to the runtime")
        translated = sqlite.translate(error)
        return translated if isinstance(translated, MATTERS) else error

    def execute_text(self, text: str) -> None:
        """Plain SQL, for migrations."""
        self.raw.ours = True
        for statement in split(text):
            self.raw.execute(statement)

    def close(self) -> Any:
        self.rollback()
        self.raw.close()


class AsyncSqliteSession(SqliteSession):
    """The same connection under an event loop: statements are quick, waiting for a turn is awaited."""

    async def _turn(self) -> None:
        deadline = time.monotonic() + self.settings.lock_timeout_seconds
        lock = _loops.setdefault(asyncio.get_running_loop(), {}).setdefault(self.path, asyncio.Lock())
        try:
            # Not wait_for, which in Python 3.11 forgets a cancellation that comes as the lock does: whoever was
            # to end would go on for ever.
            async with asyncio.timeout(self.settings.lock_timeout_seconds):
                await lock.acquire()
        except TimeoutError as error:
            raise errors.LockBusy("another task of this process holds SQLite's write lock") from error
        self._loop_lock: asyncio.Lock | None = lock
        pause = 0.0005
        while not self._writer.acquire(blocking=False):
            if time.monotonic() > deadline:
                raise errors.LockBusy("another worker of this process holds SQLite's write lock")
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.02)
        self._holding = True

    async def _write_lock(self, step: Begin) -> int:
        """BEGIN IMMEDIATE without blocking the loop while another process writes."""
        self.raw.ours = True
        deadline = time.monotonic() + self.settings.lock_timeout_seconds
        pause = 0.001
        try:
            await self._turn()
            self.raw.execute("PRAGMA busy_timeout=0")
            while True:
                try:
                    self._durability(step.lazy)
                    self.raw.execute(_BEGIN)
                    break
                except sqlite3.OperationalError as error:
                    if (
                        not isinstance(sqlite.translate(error), errors.LockBusy)
                        or time.monotonic() > deadline
                    ):
                        raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, 0.05)
            self.raw.execute("SAVEPOINT oncebox_tx")
            return self._calls(step.calls)
        except BaseException as error:
            self.rollback()
            if isinstance(error, sqlite3.Error):
                raise sqlite.translate(error) from error
            raise

    def begin(self, step: Begin) -> Any:
        return self._write_lock(step)

    async def _side(self, call: Call) -> list[tuple[Any, ...]]:
        await self._write_lock(Begin(token=""))
        try:
            rows = self._rows(call)
            self._finish(Commit(token=""))
            return rows
        except sqlite3.Error as error:
            raise sqlite.translate(error) from error
        finally:
            self.rollback()

    def side(self, call: Call) -> Any:
        return self._side(call)

    def vouch(self, call: Call) -> Any:
        return self._vouch(call)

    async def _vouch(self, call: Call) -> list[tuple[Any, ...]]:
        await self._write_lock(Begin(token=""))
        try:
            count = len(self._rows(call))
            self._finish(Commit(token=""))
            return [(count,)]
        finally:
            self.rollback()

    def _release(self) -> None:
        super()._release()
        lock, self._loop_lock = getattr(self, "_loop_lock", None), None
        if lock is not None:
            lock.release()


def split(text: str) -> list[str]:
    """Statements of a migration, one by one: executescript would commit first."""
    statements, current = [], ""
    for line in text.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements + ([current] if current.strip() else [])
