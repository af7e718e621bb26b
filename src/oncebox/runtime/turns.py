"""Batches of one process that keep meeting on the same rows take turns.

Batches lock the user's rows in arrival order. Where a few rows are hot, every two batches meet: one waits,
is rolled back, and tries again with half as many, until batches are no batches any more. One whole batch at
a time is faster than that, so the workers of a consumer then let each other's handlers finish; claiming
before them goes on side by side. Now and then they try without turns again; what is uniform stays side by
side.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from oncebox.core.run import Perform
from oncebox.core.steps import Commit, Rollback, Save, Step
from oncebox.core.work import Work
from oncebox.runtime.sessions import finished

SHORTEST_SECONDS = 2.0
LONGEST_SECONDS = 60.0
"""How long they take turns before they try side by side again: twice as long each time it did not help."""
PATIENCE_SECONDS = 1.0
"""How long a batch waits for its turn: it has a transaction open, which others may come to wait for."""
TOO_SMALL = 8
"""A batch that was halved to an eighth is one no more."""
Hands = dict[type[Step], Perform]
"""How a worker performs each kind of step."""


class Turns:
    """What the workers of one consumer share. Correct without it; it only saves batches from each other."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.monotonic = monotonic
        self.patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._turn = asyncio.Lock()
        self._works: list[Work] = []
        self._holder: Work | None = None
        self._seconds = SHORTEST_SECONDS
        self._until = 0.0

    def join(self, work: Work) -> None:
        """Count a worker in."""
        self._works.append(work)
        work.crowded = self.crowd

    @property
    def is_crowded(self) -> bool:
        """Whether batches go one after the other now."""
        return self.monotonic() < self._until

    def crowd(self, work: Work) -> None:
        """This worker's batches were halved: when they are no batches any more, take turns, with whole ones."""
        now = self.monotonic()
        if len(self._works) < 2 or now < self._until or work.limit > work.policy.batch // TOO_SMALL:
            return
        calm = now - self._until > self._seconds
        self._seconds = SHORTEST_SECONDS if calm else min(LONGEST_SECONDS, 2 * self._seconds)
        self._until = now + self._seconds
        for each in self._works:
            each.limit = each.policy.batch

    def in_turn(self, work: Work, hands: Hands, is_async: bool) -> None:
        """Have a worker wait before its handlers begin while it is crowded; who has no batches never waits."""
        if work.policy.batch == 1:
            return
        save, commit, rollback = hands[Save], hands[Commit], hands[Rollback]
        if is_async:
            hands[Save] = partial(self._enter_async, work, save)
            hands[Commit] = partial(self._end_async, work, commit)
            hands[Rollback] = partial(self._end_async, work, rollback)
        else:
            hands[Save] = partial(self._enter, work, save)
            hands[Commit] = partial(self._end, work, commit)
            hands[Rollback] = partial(self._end, work, rollback)

    def leave(self, work: Work) -> None:
        """Let the next one in, if it was this one's turn."""
        if self._holder is work:
            self._holder = None
            if self._turn.locked():
                self._turn.release()
            else:
                self._lock.release()

    def _enter(self, work: Work, perform: Perform, step: Save) -> Any:
        if not step.again and self.is_crowded and self._lock.acquire(timeout=self.patience_seconds):
            self._holder = work
        return perform(step)

    def _end(self, work: Work, perform: Perform, step: Step) -> Any:
        try:
            return perform(step)
        finally:
            self.leave(work)

    async def _enter_async(self, work: Work, perform: Perform, step: Save) -> Any:
        if not step.again and self.is_crowded:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.patience_seconds):
                    await self._turn.acquire()
                    self._holder = work
        return await finished(perform(step))

    async def _end_async(self, work: Work, perform: Perform, step: Step) -> Any:
        try:
            return await finished(perform(step))
        finally:
            self.leave(work)
