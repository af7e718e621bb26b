"""What a type checker must see in a handle, without importing a single driver.

Overloads on the drivers' own classes would turn into Any, or into errors, for everyone who lacks
one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol


class SyncHandle(Protocol):
    """sqlite3, psycopg, SQLAlchemy's Session and Connection, Django: `commit()` returns nothing."""

    def commit(self) -> None: ...


class AwaitableHandle(Protocol):
    """psycopg's and SQLAlchemy's async handles: `commit()` is awaited."""

    def commit(self) -> Awaitable[None]: ...


class AsyncpgHandle(Protocol):
    """asyncpg's connection and pool proxy, which have no `commit()`."""

    def is_in_transaction(self) -> bool: ...
    def is_closed(self) -> bool: ...


AsyncHandle = AwaitableHandle | AsyncpgHandle
