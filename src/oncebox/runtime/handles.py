"""Which database handle does an annotation ask for? Told by class names, so that no driver is imported."""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

HandleKind = Literal[
    "sqlite3",
    "psycopg",
    "psycopg-async",
    "asyncpg",
    "sqlalchemy-session",
    "sqlalchemy-async-session",
    "sqlalchemy-connection",
    "sqlalchemy-async-connection",
]

_KINDS: dict[str, HandleKind] = {
    "sqlite3.Connection": "sqlite3",
    "psycopg.Connection": "psycopg",
    "psycopg.connection.Connection": "psycopg",
    "psycopg.AsyncConnection": "psycopg-async",
    "psycopg.connection_async.AsyncConnection": "psycopg-async",
    "asyncpg.Connection": "asyncpg",
    "asyncpg.connection.Connection": "asyncpg",
    "asyncpg.pool.PoolConnectionProxy": "asyncpg",
    "sqlalchemy.orm.session.Session": "sqlalchemy-session",
    "sqlalchemy.ext.asyncio.session.AsyncSession": "sqlalchemy-async-session",
    "sqlalchemy.engine.base.Connection": "sqlalchemy-connection",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": "sqlalchemy-async-connection",
}

HANDLE_NAMES: dict[HandleKind, str] = {
    "sqlite3": "sqlite3.Connection",
    "psycopg": "psycopg.Connection",
    "psycopg-async": "psycopg.AsyncConnection",
    "asyncpg": "asyncpg.Connection",
    "sqlalchemy-session": "sqlalchemy.orm.Session",
    "sqlalchemy-async-session": "sqlalchemy.ext.asyncio.AsyncSession",
    "sqlalchemy-connection": "sqlalchemy.Connection",
    "sqlalchemy-async-connection": "sqlalchemy.ext.asyncio.AsyncConnection",
}
"""What a person writes to ask for each kind."""

_ASYNC: frozenset[HandleKind] = frozenset(
    {"psycopg-async", "asyncpg", "sqlalchemy-async-session", "sqlalchemy-async-connection"}
)


def handle_kind(annotation: Any) -> HandleKind | None:
    """The kind of handle that `annotation` (or a base of it) names, or None if it names none."""
    annotation = without_none(annotation)
    annotation = get_origin(annotation) or annotation
    for base in getattr(annotation, "__mro__", ()):
        if kind := _KINDS.get(f"{base.__module__}.{base.__qualname__}"):
            return kind
    return None


def fits(kind: HandleKind, is_async: bool) -> bool:
    """Whether a handler of that colour can use the handle. SQLite's never waits long: it serves both."""
    return kind == "sqlite3" or (kind in _ASYNC) == is_async


def bare(annotation: Any) -> Any:
    """Without `Annotated`."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def without_none(annotation: Any) -> Any:
    """The X of `X | None`; other unions, and everything else, as they are."""
    annotation = bare(annotation)
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    members = [member for member in get_args(annotation) if member is not type(None)]
    return bare(members[0]) if len(members) == 1 else annotation
