"""What one process of the proof works with: a folder, a nursery, servers; opened when first needed."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from contextlib import ExitStack
from functools import cached_property
from multiprocessing.util import Finalize
from pathlib import Path

from tests import conftest as _memory  # noqa: F401 - keeps temporary files in memory
from tests.crash.nursery import Nursery
from tests.servers import Postgres


class Bay:
    """One per process."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._numbers = itertools.count(1)
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
        return self._stack.enter_context(Postgres("deadlock_timeout=20ms", "synchronous_commit=off"))

    @cached_property
    def victim(self) -> Postgres:
        """One that may be killed."""
        return self._stack.enter_context(Postgres())

    def url(self, engine: str) -> str:
        """A fresh database."""
        if engine == "sqlite":
            return f"sqlite:///{self.folder / f'{next(self._numbers)}.db'}"
        return self.server.create_database()


_bay: Bay | None = None


def bay() -> Bay:
    """This process's."""
    global _bay
    _bay = _bay or Bay()
    return _bay
