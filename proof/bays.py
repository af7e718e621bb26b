"""What one process of the proof works with: a folder, a nursery, servers; opened when first needed."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from contextlib import ExitStack, closing
from functools import cached_property
from multiprocessing.util import Finalize
from pathlib import Path

from oncebox.drivers.database import Database
from oncebox.runtime.schema import migrate
from proof.clearing import clear, growing
from tests import conftest as _memory  # noqa: F401 - keeps temporary files in memory
from tests.crash.effects import create_table, reader
from tests.crash.nursery import Nursery
from tests.servers import Postgres

SPARING = (
    "deadlock_timeout=20ms", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off", "jit=off",
    "shared_buffers=32MB", "max_wal_size=256MB",
)  # fmt: skip


class Bay:
    """One per process."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._numbers = itertools.count(1)
        self._used: dict[Postgres, tuple[str, list[str]]] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="oncebox-proof-"))
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        Finalize(self, self._stack.close, exitpriority=10)

    @cached_property
    def nursery(self) -> Nursery:
        return self._stack.enter_context(Nursery(self.folder))

    @cached_property
    def server(self) -> Postgres:
        """Shared by this process's jobs: not to be killed."""
        # Killed processes are at stake here, not killed servers: nobody need wait for the log.
        return self._stack.enter_context(Postgres(*SPARING))

    @cached_property
    def victim(self) -> Postgres:
        """One that may be killed."""
        return self._stack.enter_context(Postgres())

    def url(self, engine: str) -> str:
        """A fresh database."""
        if engine == "sqlite":
            return f"sqlite:///{self.folder / f'{next(self._numbers)}.db'}"
        return self.server.create_database()

    def emptied(self, engine: str) -> str:
        """A database as a fresh one; on PostgreSQL, where that is dear, one that earlier jobs have used."""
        return self.url(engine) if engine == "sqlite" else self._emptied(self.server)

    def doomed(self) -> str:
        """A database of the victim's, in the same way."""
        return self._emptied(self.victim)

    def _emptied(self, server: Postgres) -> str:
        if server not in self._used:
            url = server.create_database()
            migrate(Database(url))
            create_table(url)
            with closing(reader(url)) as connection:
                self._used[server] = (url, growing(connection))
        url, names = self._used[server]
        with closing(reader(url)) as connection:
            clear(connection, names)
        return url


_bay: Bay | None = None


def bay() -> Bay:
    """This process's."""
    global _bay
    _bay = _bay or Bay()
    return _bay
