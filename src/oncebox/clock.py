"""Time as a value that can be injected: the machine's, or a test's.

Only waiting and visibility inside one process go by these clocks. What several processes must agree
on goes by the database's clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Seconds that only grow, and a notice when they jump."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; only differences mean anything."""
        ...

    def watch(self, jumped: Callable[[], None]) -> Callable[[], None]:
        """Call `jumped` after every jump of time, from whichever thread made it; returns how to stop.

        A clock that does not jump never calls it: whoever waits for a moment also sets a real timer.
        """
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def monotonic(self) -> float:
        """Seconds by the machine's monotonic clock."""
        return time.monotonic()

    def watch(self, jumped: Callable[[], None]) -> Callable[[], None]:
        """Never calls `jumped`: this clock does not jump."""
        return _nothing


class FakeClock:
    """A clock that stands still until a test moves it. Safe to share between threads."""

    def __init__(self, start_seconds: float = 1_000.0) -> None:
        self._lock = threading.Lock()
        self._seconds = start_seconds
        self._watchers: dict[int, Callable[[], None]] = {}
        self._watched = 0

    def monotonic(self) -> float:
        """The seconds it was moved to."""
        with self._lock:
            return self._seconds

    def advance(self, seconds: float) -> None:
        """Jump ahead, then tell every watcher; ValueError for a step back."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock can't go back by {-seconds:g} s")
        with self._lock:
            self._seconds += seconds
            watchers = list(self._watchers.values())
        # Outside the lock: a watcher reads this clock.
        for jumped in watchers:
            jumped()

    def watch(self, jumped: Callable[[], None]) -> Callable[[], None]:
        """Call `jumped` after every `advance`; returns how to stop."""
        with self._lock:
            self._watched += 1
            handle = self._watched
            self._watchers[handle] = jumped

        def stop() -> None:
            with self._lock:
                self._watchers.pop(handle, None)

        return stop


def _nothing() -> None:
    """What stops a watch that never began."""
