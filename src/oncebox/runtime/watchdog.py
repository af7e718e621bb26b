"""Interrupts blocking handlers that run past their time.

A thread can't be stopped from outside, but the statement it waits for can be cancelled; a handler
that loops without touching the database is only refused when it returns.
"""

from __future__ import annotations

import threading
import time

from oncebox.drivers.session import Session

_LOOK_SECONDS = 0.1
_IDLE_LOOKS = 50
"""After so many looks at nothing the thread ends; the next handler starts another."""


class Watchdog:
    """One thread that looks after every blocking handler of the process."""

    def __init__(self) -> None:
        self._deadlines: dict[int, tuple[float, Session]] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._cancelling = threading.Lock()

    def enter(self, session: Session, deadline: float) -> None:
        """A handler starts on this session."""
        self._deadlines[id(session)] = (deadline, session)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="oncebox-watchdog", daemon=True)
                self._thread.start()

    def leave(self, session: Session) -> None:
        """The handler has returned. Waits for a cancellation that is under way: it must not meet the
        runtime's own next statement."""
        entry = self._deadlines.pop(id(session), None)
        if entry is not None and time.monotonic() > entry[0]:
            with self._cancelling:
                return

    def _look(self) -> None:
        idle = 0
        while True:
            time.sleep(_LOOK_SECONDS)
            idle = 0 if self._deadlines else idle + 1
            if idle >= _IDLE_LOOKS:
                with self._lock:
                    self._thread = None
                    # Who enters says so before it looks for the thread: it is seen here, or starts another.
                    if not self._deadlines:
                        return
                    self._thread = threading.current_thread()
            now = time.monotonic()
            for mark, (deadline, session) in list(self._deadlines.items()):
                if now > deadline:
                    with self._cancelling:
                        if mark in self._deadlines:
                            session.cancel()
