"""SQLite: how a statement takes many rows, and what its error codes mean."""

from __future__ import annotations

import sqlite3
from functools import lru_cache

from oncebox import errors
from oncebox.core.queries import Query

VERSION_MIN = (3, 38, 0)
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_UNAVAILABLE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB}

ROWS_MAX = 200
"""Rows of one statement: far below SQLite's bound for parameters."""


@lru_cache(maxsize=2 * ROWS_MAX)
def whole(query: Query, rows: int) -> str:
    """An INSERT … VALUES for so many rows, its parameters by position: `query.order` for each row."""
    before, _, rest = "?".join(query.pieces[::2]).partition("VALUES ")
    values, on, after = rest.partition("\nON CONFLICT")
    assert on, f"{query.name} is no INSERT of values"
    return f"{before}VALUES {', '.join([values] * rows)}{on}{after}"


def translate(error: sqlite3.Error) -> errors.OnceboxError:
    """What a sqlite3 error means to a flow; the error becomes the cause."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    if primary in _BUSY:
        return errors.LockBusy(
            "another connection holds SQLite's write lock, which there is one of: try again when its transaction "
            "is over, and keep handlers short (or use PostgreSQL)"
        )
    if primary in _UNAVAILABLE or (
        isinstance(error, sqlite3.ProgrammingError) and "closed database" in str(error)
    ):
        return errors.DatabaseUnavailable(f"SQLite can't read or write its file ({error})")
    if "no such table" in str(error) or "no such column" in str(error):
        return errors.SchemaMissing("no oncebox tables in this database; run: oncebox migrate")
    return errors.DatabaseError(
        f"SQLite refused ({getattr(error, 'sqlite_errorname', type(error).__name__)})"
    )
