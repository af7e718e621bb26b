"""Which adapter serves a handle, by the names of its classes and without importing any driver."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from oncebox.errors import UnknownHandle
from oncebox.inbox.adapters.base import Adapter

# Package and class name of the handle, to module and class of the adapter.
_KNOWN = {
    "sqlite3.Connection": "sqlite3:Sqlite3",
    "psycopg.Connection": "psycopg:Psycopg",
    "psycopg.AsyncConnection": "psycopg:AsyncPsycopg",
    "asyncpg.Connection": "asyncpg:Asyncpg",
    "asyncpg.PoolConnectionProxy": "asyncpg:Asyncpg",
    "sqlalchemy.Session": "sqlalchemy:SqlalchemySession",
    "sqlalchemy.scoped_session": "sqlalchemy:SqlalchemySession",
    "sqlalchemy.Connection": "sqlalchemy:SqlalchemyConnection",
    "sqlalchemy.AsyncSession": "sqlalchemy:AsyncSqlalchemySession",
    "sqlalchemy.async_scoped_session": "sqlalchemy:AsyncSqlalchemySession",
    "sqlalchemy.AsyncConnection": "sqlalchemy:AsyncSqlalchemyConnection",
    "django.ConnectionProxy": "django:Django",
    "django.BaseDatabaseWrapper": "django:Django",
}
_LISTED = (
    "sqlite3.Connection; psycopg.Connection or AsyncConnection; asyncpg's connection or its pool's; "
    "SQLAlchemy's Session, AsyncSession, Connection or AsyncConnection; Django's connection"
)


def adapter_for(handle: Any) -> Adapter:
    """The adapter of a handle, or UnknownHandle listing the known ones. Touches no database."""
    kind: type = type(handle)
    return _adapter_class(kind)(handle)


@lru_cache(maxsize=128)
def _adapter_class(kind: type) -> Callable[[Any], Adapter]:
    for base in kind.__mro__:
        name = f"{base.__module__.partition('.')[0]}.{base.__qualname__}"
        if name in _KNOWN:
            module, _, cls = _KNOWN[name].partition(":")
            found: type[Adapter] = getattr(import_module(f"oncebox.inbox.adapters.{module}"), cls)
            return found
    raise UnknownHandle(
        f"the guard joins a transaction, so it takes what holds one: {_LISTED}. "
        f"This is a {kind.__module__}.{kind.__qualname__}"
    )
