"""How a transaction on the app's engine can come to a bad end, in words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from sqlalchemy import exc

from oncebox import errors

_CHAIN_MAX = 10


def refused() -> errors.TransactionEnded:
    """The handler called commit()."""
    return errors.TransactionEnded(
        "the handler tried to commit by itself; the runtime commits after it returns (flush() writes what is "
        "pending, begin_nested() sets a savepoint)"
    )


def ended() -> errors.TransactionEnded:
    """The handler rolled back, or closed its session or connection."""
    return errors.TransactionEnded(
        "the handler ended the transaction by itself (rollback, or close); the runtime does that after it "
        "returns. Wrap what may fail in begin_nested()"
    )


def swallowed() -> errors.TransactionAborted:
    """A flush failed, and its error went no further."""
    return errors.TransactionAborted(
        "a database error was swallowed inside the handler, so nothing can be committed; let the error out, or "
        "wrap what may fail in begin_nested()"
    )


def cut_off() -> errors.TransactionAborted:
    """The connection went away under the handler, which returned all the same."""
    return errors.TransactionAborted(
        "the handler's connection was lost, or a statement was cancelled by a timeout of its own, and the error "
        "was swallowed; let it out"
    )


def pool_is_empty() -> errors.DatabaseUnavailable:
    """No connection came free in time."""
    return errors.DatabaseUnavailable(
        "the engine's pool gave no connection within its timeout; its pool_size and max_overflow together should "
        "be at least the consumers' concurrency"
    )


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and what led to it."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and len(seen) < _CHAIN_MAX and not any(current is link for link in seen):
        seen.append(current)
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def is_drivers(error: BaseException) -> bool:
    """Whether it came from a driver: wrapped by SQLAlchemy, or past it, as errors of connecting and of
    asyncpg's network do."""
    past = type(error).__module__.partition(".")[0] in ("psycopg", "asyncpg", "sqlite3")
    return past or isinstance(error, (exc.DBAPIError, OSError))


def is_told(error: BaseException) -> bool:
    """Whether it is a driver's word about a statement, however it came here."""
    return isinstance(getattr(error, "sqlstate", None), str) or isinstance(error, sqlite3.Error)


def drivers_own(error: BaseException) -> BaseException:
    """The driver's error behind SQLAlchemy's. The adapter of asyncpg leaves the code out of one that it has a name for,
    and has the original as its cause."""
    cause: BaseException | None = getattr(error, "orig", None)
    if cause is None:
        return error
    behind = cause.__cause__
    return behind if behind is not None and is_told(behind) and not is_told(cause) else cause


def is_loss(error: BaseException) -> bool:
    """Whether the error may tell of a lost connection. A timeout does not: it cancels a statement."""
    return isinstance(error, (exc.DBAPIError, OSError)) and not isinstance(error, TimeoutError)


def is_closed(driver: Any) -> bool:
    """Whether the driver knows its connection to be closed."""
    closed = getattr(driver, "is_closed", None)  # asyncpg
    return bool(closed() if callable(closed) else getattr(driver, "closed", False))
