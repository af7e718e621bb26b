"""A time limit for one handler after another, with one timer for all of them.

`asyncio.timeout` makes and drops a timer each time, which is a tenth of what a message costs in a batch. Here the
timer that is running is left alone; it looks at the deadline when it fires, and goes on to that one.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Limit:
    """Cancels the task that started it when its time is over; `is_over` tells that from anybody else's cancel."""

    def __init__(self, seconds: float, task: asyncio.Task[Any] | None = None) -> None:
        self.seconds = seconds
        self._only = task
        """The one task that will ever start it, where that is known: to ask takes as long as the rest."""
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._struck = False

    def start(self) -> None:
        """Begin: the current task has `seconds` from now, until `end`."""
        task = self._only or asyncio.current_task()
        assert task is not None
        loop = task.get_loop()
        self._task, self._cancelling, self._struck = task, task.cancelling(), False
        self._deadline = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_at(self._deadline, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._deadline is None:
            return
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._look, loop)
            return
        self._struck, self._deadline = True, None
        assert self._task is not None
        self._task.cancel()

    def is_asked(self) -> bool:
        """Whether somebody has cancelled the task since it started."""
        return self._task is not None and self._task.cancelling() > self._cancelling

    def end(self) -> bool:
        """Whether the time was over, and nobody else cancelled the task: then its CancelledError was this one's."""
        self._deadline = None
        if not self._struck or self._task is None:
            return False
        self._struck = False
        return self._task.uncancel() <= self._cancelling
