"""SQLite has one writer: writers of a process take turns by a lock, since its own waiting is not fair."""

from __future__ import annotations

import asyncio
import threading
import time

from oncebox import errors
from oncebox.drivers import sqlite

_PAUSE_SECONDS_MAX = 0.02


class Turn:
    """One session's place in the line; the same line as that of sessions without SQLAlchemy."""

    def __init__(self, path: str, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._writer = sqlite._writers.setdefault(path, threading.Lock())
        self._loop_lock: asyncio.Lock | None = None
        self._holding = False

    def take(self) -> None:
        """Wait for the turn, or LockBusy."""
        if not self._holding:
            if not self._writer.acquire(timeout=self._seconds):
                raise _busy()
            self._holding = True

    async def take_async(self) -> None:
        """The same without blocking the loop; its tasks queue up fairly, and only the first asks others."""
        if self._holding:
            return
        deadline = time.monotonic() + self._seconds
        locks = sqlite._loops.setdefault(asyncio.get_running_loop(), {})
        lock = locks.setdefault(self._path, asyncio.Lock())
        try:
            async with asyncio.timeout(self._seconds):  # not wait_for: see the other driver's
                await lock.acquire()
        except TimeoutError:
            raise _busy() from None
        self._loop_lock = lock
        pause = 0.0005
        try:
            while not self._writer.acquire(blocking=False):
                if time.monotonic() > deadline:
                    raise _busy()
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)
        except BaseException:
            self.release()
            raise
        self._holding = True

    def release(self) -> None:
        """Let the next one write."""
        if self._holding:
            self._holding = False
            self._writer.release()
        lock, self._loop_lock = self._loop_lock, None
        if lock is not None:
            lock.release()


def _busy() -> errors.LockBusy:
    return errors.LockBusy("another worker of this process holds SQLite's write lock")
