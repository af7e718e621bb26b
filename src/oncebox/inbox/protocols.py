"""What a type checker must see in a handle, without importing a single driver.

Overloads on the drivers' own classes would turn into Any, or into errors, for everyone who lacks
one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol


class SyncHandle(Protocol):
    """sqlite3, psycopg, SQLAlchemy's Session and Connection, Django: `commit()` returns nothing."""

    def commit(self) -> None: ...


class AwaitableHandle(Protocol):
    """psycopg's and SQLAlchemy's async handles: `commit()` is awaited."""

    def commit(self) -> Awaitable[None]: ...


class AsyncpgHandle(Protocol):
    """asyncpg's connection, which has no `commit()`."""

    def is_in_transaction(self) -> bool: ...


class AsyncpgProxy(Protocol):
    """A connection of asyncpg's pool. Its methods are made at run time, so without type stubs this
    is all that a checker sees of it."""

    def _detach(self) -> Any: ...


AsyncHandle = AwaitableHandle | AsyncpgHandle | AsyncpgProxy
