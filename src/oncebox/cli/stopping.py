"""Being asked to stop: by signals, or by a supervisor over a pipe.

The first signal drains, the second stops at once, the third ends the process where it stands.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from oncebox.runtime.supervisor import STOP

AT_ONCE_SECONDS = 3.0
"""Stopping at once takes no longer than this, whatever blocks: a handler that keeps the event loop to
itself, or a plain `def` one that sits on SQLite's write lock, and with it on our own last writes."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Calls `drain`, then `hurry`, on the loop it was made on. Signals reach it even when a handler
    blocks the loop, so that "at once" needs nobody's cooperation."""

    def __init__(
        self, drain: Callable[[], None], hurry: Callable[[], None], *, seconds: float | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._drain = drain
        self._hurry = hurry
        self._seconds = AT_ONCE_SECONDS if seconds is None else seconds
        self.requests = 0
        self.exit_code = 0
        """128 + the signal that asked to stop at once; 0 while nobody has."""

    def listen(self) -> None:
        """Take signals from now on, from a person or a service manager."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def obey(self) -> None:
        """Be a supervisor's child: it says when to stop, over standard input, and its end says so too."""
        # SIGTERM may come from a service manager that signals every process of the service, besides the
        # parent's word for the same request. Hence it only ever drains, however often it comes.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: self._call(self._drain))
        pipe = os.dup(0)
        # What handlers start must not read the parent's words, nor keep the pipe open.
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        threading.Thread(target=self._read, args=(pipe,), name="oncebox-parent", daemon=True).start()

    def _read(self, pipe: int) -> None:
        while True:
            word = os.read(pipe, 1)
            if word == STOP:
                self._at_once(signal.SIGTERM)
                return
            self._call(self._drain)
            if not word:
                return

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requests += 1
        if self.requests == 1:
            self._call(self._drain)
        elif self.requests == 2:
            self._at_once(number)
        else:
            os._exit(128 + number)

    def _at_once(self, number: int) -> None:
        self.exit_code = 128 + number
        timer = threading.Timer(self._seconds, os._exit, (self.exit_code,))
        timer.daemon = True
        timer.start()
        self._call(self._hurry)

    def _call(self, what: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            return  # the loop is closed: everything has ended already


def leave(exit_code: int) -> None:
    """End the process without waiting for threads: a handler that blocks one would hold it up."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
