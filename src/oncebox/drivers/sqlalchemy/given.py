"""What an app was given: which engine, which kind of session, and why it can't be used.

Opens nothing. Everything that can be refused without a connection is refused here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from oncebox.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

DRIVERS = {"psycopg": "psycopg", "asyncpg": "asyncpg", "pysqlite": "sqlite3", "aiosqlite": "sqlite3"}
"""SQLAlchemy's name of a driver to the module it drives."""

_ACCEPTED = "a sessionmaker(engine), an async_sessionmaker(engine), an Engine or an AsyncEngine"


class Given(NamedTuple):
    """An engine, and how to make a session of the app's on one of its connections."""

    engine: Engine
    async_engine: AsyncEngine | None
    maker: Callable[..., Any] | None
    """None where the app was given an engine: sessions are then SQLAlchemy's plain ones."""

    @property
    def driver(self) -> str:
        return DRIVERS[_driver(self.engine)]

    def connection(self, connection: Connection) -> Any:
        """The connection as handlers of this app's colour use it."""
        if self.async_engine is None:
            return connection
        from sqlalchemy.ext.asyncio import AsyncConnection

        return AsyncConnection(self.async_engine, connection)

    def session(self, connection: Connection) -> Any:
        """A session of the app's that works on this connection, in the transaction that is open on it.

        It controls that transaction fully, so that its commit, rollback and close reach the
        connection and are noticed there; the other ways of joining keep them to themselves.
        """
        return (self.maker or self._plain())(
            bind=self.connection(connection),
            binds=None,
            join_transaction_mode="control_fully",
            twophase=False,
            autobegin=True,
        )

    def _plain(self) -> Callable[..., Any]:
        if self.async_engine is None:
            return sessionmaker()
        from sqlalchemy.ext.asyncio import async_sessionmaker

        return async_sessionmaker()


def given(value: Any) -> Given:
    """Take apart what `App(…)` was given; ConfigError says what it should have been."""
    if isinstance(value, scoped_session) or _is_async(value, "async_scoped_session"):
        value = value.session_factory
    if isinstance(value, sessionmaker) or _is_async(value, "async_sessionmaker"):
        found = _of_maker(value)
    elif _is_async(value, "AsyncEngine"):
        found = Given(value.sync_engine, value, None)
    elif isinstance(value, Engine):
        found = Given(value, None, None)
    else:
        raise ConfigError(f"an app's database is a URL, or {_ACCEPTED}; not {_shown(value)}")
    _check_engine(found)
    return found


def _of_maker(maker: Any) -> Given:
    bind = maker.kw.get("bind")
    if not isinstance(bind, Engine) and not _is_async(bind, "AsyncEngine"):
        what = "no engine" if bind is None else f"{_shown(bind)} for an engine"
        raise ConfigError(f"the sessionmaker has {what}: write sessionmaker(engine)")
    if not isinstance(maker, sessionmaker) and isinstance(bind, Engine):
        raise ConfigError("an async_sessionmaker needs an engine of create_async_engine(…)")
    others = [other for other in (maker.kw.get("binds") or {}).values() if other is not bind]
    if others:
        raise ConfigError(
            "the sessionmaker's binds name another engine, whose transaction can't be the claim's: "
            "give the app a sessionmaker of one engine"
        )
    if isinstance(bind, Engine):
        return Given(bind, None, maker)
    return Given(bind.sync_engine, bind, maker)


def _is_async(value: Any, name: str) -> bool:
    """Whether it is of that class of SQLAlchemy's asyncio module, which can't be imported without greenlet;
    but whoever has something of it has imported it."""
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    return module is not None and isinstance(value, getattr(module, name))


def _check_engine(found: Given) -> None:
    engine = found.engine
    if _driver(engine) not in DRIVERS:
        raise ConfigError(
            f"this engine uses {engine.dialect.name}+{_driver(engine)}, which an app does not know; use "
            "postgresql+psycopg://, postgresql+asyncpg://, sqlite:/// or sqlite+aiosqlite:///"
        )
    if found.async_engine is None and engine.dialect.is_async:
        raise ConfigError(f"an engine over {_driver(engine)} is made by create_async_engine(…)")
    if engine.dialect.name == "sqlite":
        _check_file(engine)
    if isinstance(engine.pool, (StaticPool, SingletonThreadPool)):
        raise ConfigError(
            f"an engine with a {type(engine.pool).__name__} gives one connection to several workers at once; "
            "leave the pool to SQLAlchemy, or use NullPool"
        )
    if _autocommits(engine.get_execution_options()):
        raise autocommit()


def _check_file(engine: Engine) -> None:
    url = engine.url
    if not url.database or url.database == ":memory:" or url.query.get("mode") == "memory":
        raise ConfigError(
            "an app needs SQLite in a file that all its connections share: sqlite:///name.db "
            "(an in-memory database is private to one connection; the guard can use it)"
        )
    if url.database.startswith("file:"):
        raise ConfigError("name SQLite's file by its path, sqlite:///name.db, not by a file: URI")


def autocommit() -> ConfigError:
    """The refusal of an engine without transactions."""
    return ConfigError(
        "this engine commits every statement by itself (AUTOCOMMIT), so there is no transaction to join; "
        'give the app an engine without isolation_level="AUTOCOMMIT" (engine.execution_options(…) makes one)'
    )


def _autocommits(options: Any) -> bool:
    return str(options.get("isolation_level", "")).upper() == "AUTOCOMMIT"


def _driver(engine: Engine) -> str:
    return engine.dialect.driver


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    hint = (
        " (a session lasts for one transaction; an app makes its own)" if isinstance(value, Session) else ""
    )
    return f"a {type(value).__name__}{hint}"
