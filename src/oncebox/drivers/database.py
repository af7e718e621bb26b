"""From a URL to connections: which driver, which dialect, and what is wrong with the URL.

Opens nothing when made. Connection strings never reach an error's text or a repr.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from oncebox.core.queries import Queries
from oncebox.drivers.session import Session, Settings
from oncebox.engines.queries import load
from oncebox.errors import ConfigError

_SCHEMES = {
    "postgresql": ("postgresql", "psycopg", "postgres"),
    "postgres": ("postgresql", "psycopg", "postgres"),
    "postgresql+psycopg": ("postgresql", "psycopg", "postgres"),
    "postgresql+asyncpg": ("postgresql", "asyncpg", "asyncpg"),
    "sqlite": ("sqlite", "sqlite3", ""),
}

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]@]*)(:\d*)?")


class Database:
    """Where the tables are, and how to get a connection. Its repr has no password."""

    def __init__(self, url: str, *, schema: str = "oncebox") -> None:
        if "://" not in str(url):
            kind = type(url).__name__
            what = "has no ://" if kind == "str" else f"is of type {kind}"
            raise ConfigError(
                f"not a database URL (it {what}); use postgresql://host/name, postgresql+asyncpg://host/name or "
                "sqlite:///file"
            )
        scheme = url.split("://", 1)[0]
        if scheme not in _SCHEMES:
            raise ConfigError(
                f"unknown database scheme {scheme!r}; known: postgresql://, postgresql+asyncpg://, sqlite:///"
            )
        self.dialect, self.driver, extra = _SCHEMES[scheme]
        self.queries: Queries = load(self.dialect, schema)
        self.schema = schema
        self.pooled = False
        if self.dialect == "sqlite":
            self._target = _sqlite_path(url)
        else:
            if find_spec(self.driver) is None:
                raise ConfigError(
                    f"{scheme}:// needs the {self.driver} package: pip install 'oncebox[{extra}]'"
                )
            self._target, self.pooled = _postgres_url(url)

    def __repr__(self) -> str:
        return f"<Database {self.place}>"

    @property
    def place(self) -> str:
        """Where it is, for people: no user, no password."""
        if self.dialect == "sqlite":
            return f"sqlite:///{self._target}"
        parts = urlsplit(self._target)
        return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def serves_sync(self) -> bool:
        """Whether plain `def` handlers can be served."""
        return self.driver != "asyncpg"

    def connect(self, settings: Settings) -> Session:
        """A blocking connection, or DatabaseUnavailable."""
        if self.dialect == "sqlite":
            from oncebox.drivers.sqlite import SqliteSession

            return SqliteSession(self._target, self.queries, settings)
        if self.driver == "asyncpg":
            raise ConfigError(
                "asyncpg has no blocking connection: use async handlers, or a postgresql:// URL"
            )
        from oncebox.drivers.psycopg import PsycopgSession

        return PsycopgSession.open(self._target, self.queries, settings, self.pooled)

    async def connect_async(self, settings: Settings) -> Session:
        """An async connection, or DatabaseUnavailable."""
        if self.dialect == "sqlite":
            from oncebox.drivers.sqlite import AsyncSqliteSession

            return AsyncSqliteSession(self._target, self.queries, settings)
        if self.driver == "asyncpg":
            from oncebox.drivers.asyncpg import AsyncpgSession

            return await AsyncpgSession.open(self._target, self.queries, settings, self.pooled)
        from oncebox.drivers.psycopg import AsyncPsycopgSession

        return await AsyncPsycopgSession.open(self._target, self.queries, settings, self.pooled)

    def handle_kinds(self) -> frozenset[str]:
        """What handlers may ask for as their connection."""
        if self.dialect == "sqlite":
            return frozenset({"sqlite3"})
        return frozenset({"asyncpg"} if self.driver == "asyncpg" else {"psycopg", "psycopg-async"})


def _misread() -> ConfigError:
    return ConfigError(
        "the database URL can't be read: in its user name and password, write : / ? # [ ] @ % in percent-encoding "
        "(urllib.parse.quote(text, safe='') does), and its port is a number"
    )


def _sqlite_path(url: str) -> str:
    rest = re.split(r"[?#]", url.removeprefix("sqlite://"), maxsplit=1)[0]
    path = unquote(rest.removeprefix("/"))
    if path in ("", ":memory:"):
        raise ConfigError(
            "an app needs SQLite in a file that all its connections share: sqlite:///name.db "
            "(an in-memory database is private to one connection; the guard can use it)"
        )
    return path


def _postgres_url(url: str) -> tuple[str, bool]:
    """The URL as drivers take it, and whether `pooler=transaction` was said."""
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2].split(",")
    except ValueError:
        raise _misread() from None
    # A password's own : / @ or # would be read as the end of it, and its rest shown as host or port.
    if (
        parts.fragment
        or parts.netloc.count("@") > 1
        or "@" in parts.path
        or not all(map(_HOST.fullmatch, hosts))
    ):
        raise _misread()
    query: list[tuple[str, Any]] = parse_qsl(parts.query, keep_blank_values=True)
    pooler = dict(query).get("pooler", "")
    if pooler not in ("", "transaction"):
        raise ConfigError(f"pooler={pooler!r}: the only pooler mode to name is pooler=transaction")
    rest = urlencode([(name, value) for name, value in query if name != "pooler"])
    # Not by urlunsplit: it leaves the // out where there is no host, as in postgresql:///name?host=/run.
    return f"postgresql://{parts.netloc}{parts.path}{'?' + rest if rest else ''}", pooler == "transaction"
