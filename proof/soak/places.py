"""Where a soak's messages go: one server, a pair of which the standby is promoted, or a SQLite file whose
disk is full now and then."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import psycopg

from tests.crash.effects import reader
from tests.servers import Postgres
from tests.servers.postgres import USER
from tests.servers.process import free_port, private_folder, remove_folder, run_as_server
from tests.waiting import eventually

CONNECTIONS = 80
"""Of one server: so few that all of them can be taken."""

DEAF_SECONDS = 30.0
"""The longest that a standby is left behind, waiting for something that it misses."""


class Place(ABC):
    """A database, and the bad things that it can suffer."""

    url: str
    """As workers are told it."""
    strikes: ClassVar[dict[str, int]] = {}
    """What can happen to it, and how often beside 80 kills of a worker."""
    full: str = ""
    """The file that says that the disk is full."""

    @abstractmethod
    def strike(self, what: str) -> float:
        """Let it happen; for how many seconds it is to last."""

    @abstractmethod
    def relieve(self) -> None:
        """End what lasts."""

    def is_ready(self, what: str) -> bool:
        """Whether what is planned next would tell something now."""
        return True

    def ask(self, text: str) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        connection = reader(self.url)
        try:
            rows: list[tuple[Any, ...]] = connection.execute(text).fetchall()
            return rows
        finally:
            connection.close()

    @abstractmethod
    def close(self) -> None:
        """Remove it."""


class OneServer(Place):
    """It is killed and starts again, and strangers take all the connections it has."""

    strikes: ClassVar[dict[str, int]] = {"database": 5, "crowd": 3}

    def __init__(self) -> None:
        self.server = Postgres(f"max_connections={CONNECTIONS}").start()
        self.url = self.server.create_database()
        self._crowd: list[psycopg.Connection[Any]] = []

    def strike(self, what: str) -> float:
        if what == "database":
            self.relieve()
            self.server.kill9()
            self.server.start()
            return 0.0
        with suppress(psycopg.OperationalError):
            for _ in range(CONNECTIONS):
                self._crowd.append(psycopg.connect(self.server.url(), connect_timeout=5))
        return 3.0

    def relieve(self) -> None:
        for connection in self._crowd:
            connection.close()
        self._crowd.clear()

    def close(self) -> None:
        self.relieve()
        self.server.close()


class Standby(Postgres):
    """A copy of a running server that follows it, until it is promoted."""

    def __init__(self, primary: Postgres) -> None:
        self.port = 0
        self._settings = primary._settings
        self._process = None
        self._names = itertools.count(1)
        self._folder = private_folder("oncebox-standby-")
        self._log = self._folder / "log"
        try:
            self._bin = primary._bin
            copy = [str(self._bin / "pg_basebackup"), "-h", "127.0.0.1", "-p", str(primary.port), "-U", USER]
            run_as_server([*copy, "-D", str(self._data), "-R", "-c", "fast"], cwd=self._folder)
        except BaseException:
            remove_folder(self._folder)
            raise

    def promote(self) -> None:
        """Let it take over what it has received."""
        with psycopg.connect(self.url(), autocommit=True) as admin:
            admin.execute("SELECT pg_promote(true, 60)")
            eventually(lambda: admin.execute("SELECT pg_is_in_recovery()").fetchone() == (False,), 60)


class Pair(Place):
    """A primary that dies for good under load, and its standby that takes over: with every commit, or, when
    commits do not wait for it, without the last ones."""

    def __init__(self, *, synchronous: bool) -> None:
        self.synchronous = synchronous
        self._unheard = (0, 0.0)
        """Ledger rows when the standby became deaf, and when that was."""
        self.primary = Postgres(f"max_connections={CONNECTIONS}").start()
        self.name = self.primary.create_database().rsplit("/", 1)[1]
        self.standby = Standby(self.primary)
        try:
            self.standby.start()
            hosts = ",".join(f"127.0.0.1:{server.port}" for server in (self.primary, self.standby))
            self.url = f"postgresql://{USER}@{hosts}/{self.name}?target_session_attrs=read-write"
            with psycopg.connect(self.primary.url(), autocommit=True) as admin:
                eventually(lambda: _is_followed(admin), 60)
                if synchronous:
                    admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                    admin.execute("SELECT pg_reload_conf()")
                    eventually(lambda: _is_followed(admin, "sync"), 60)
        except BaseException:
            self.close()
            raise

    def strike(self, what: str) -> float:
        """`deaf`: the standby hears nothing more. `failover`: the primary dies, and the standby takes over."""
        if what == "deaf":
            # The sender, not the receiver: what is on its way already would still be heard.
            ((sender,),) = self.ask("SELECT pid FROM pg_stat_replication")
            os.kill(sender, signal.SIGSTOP)
            self._unheard = (self._rows(), time.monotonic())
            return 0.0
        self.primary.kill9()
        self.standby.promote()
        return 0.0

    def is_ready(self, what: str) -> bool:
        rows, since = self._unheard
        if self.synchronous or what != "failover" or time.monotonic() - since > DEAF_SECONDS:
            return True
        return self._rows() >= rows + 20

    def _rows(self) -> int:
        return int(self.ask("SELECT count(*) FROM oncebox.ledger")[0][0])

    def relieve(self) -> None:
        """What is gone is gone."""

    def unheard(self) -> set[tuple[str, str, str]]:
        """Messages whose ledger row the dead primary had committed when the standby had not heard of it: by
        the primary's own log, past the place where the standby's own began."""
        history = (self.standby._data / "pg_wal" / "00000002.history").read_text()
        switch = history.split("\t")[1]
        told = subprocess.run(
            [str(self.primary._bin / "pg_waldump"), "-p", str(self.primary._data / "pg_wal"), "-t", "1",
             "-s", switch, "-r", "Transaction"],
            capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip
        commits = [line for line in told.splitlines() if "desc: COMMIT" in line]
        xids = {line.split("tx:")[1].split(",")[0].strip() for line in commits}
        self.primary.port = free_port()  # where nobody takes it for the primary any more
        self.primary.start()
        with psycopg.connect(self.primary.url(self.name), autocommit=True) as old:
            rows = old.execute(
                "SELECT consumer, source, message_id, xmin::text FROM oncebox.ledger"
            ).fetchall()
        return {(row[0], row[1], row[2]) for row in rows if row[3] in xids}

    def close(self) -> None:
        self.standby.close()
        self.primary.close()


def _is_followed(admin: psycopg.Connection[Any], how: str = "") -> bool:
    rows = admin.execute("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'").fetchall()
    return bool(rows) and how in ("", rows[0][0])


class LiteFile(Place):
    """A SQLite file. While `full` is there, no process can make it larger: SQLITE_FULL, as on a full disk."""

    strikes: ClassVar[dict[str, int]] = {"full": 30}

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'soak.db'}"
        self._full = folder / "full"
        self.full = str(self._full)

    def strike(self, what: str) -> float:
        self._full.touch()
        return 1.0

    def relieve(self) -> None:
        self._full.unlink(missing_ok=True)

    def close(self) -> None:
        self.relieve()
