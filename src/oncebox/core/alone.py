"""The place for a message that processes have died of: one at a time, so that the next death names its cause."""

from __future__ import annotations

import threading


class Alone:
    """Shared by all workers of a process. Who does not get the place puts its message off, and goes on with others."""

    __slots__ = ("_holder", "_lock")

    def __init__(self) -> None:
        self._holder: object | None = None
        self._lock = threading.Lock()

    def enter(self, worker: object) -> bool:
        """Whether the worker has the place now; again and again, until it leaves."""
        with self._lock:
            if self._holder is None:
                self._holder = worker
            return self._holder is worker

    def leave(self, worker: object) -> None:
        """Give the place up, for whoever has it."""
        if self._holder is worker:
            self._holder = None
