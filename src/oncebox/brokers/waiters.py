"""Coroutines of several event loops that wait for one thing, woken from any thread."""

from __future__ import annotations

import asyncio
import math


class Waiter:
    """One coroutine that waits in the loop it runs in."""

    def __init__(self, due: float | None) -> None:
        self.due = math.inf if due is None else due
        """When it will look again by itself, by the broker's clock."""
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        """End the wait, from any thread. A waiter whose loop is gone waits for nothing any more."""
        try:
            self._loop.call_soon_threadsafe(self._wake_here)
        except RuntimeError:
            return

    async def wait(self, seconds: float | None) -> None:
        """Until woken, `seconds` at most; either way the waiter looks again at what is there."""
        timer = None if seconds is None else self._loop.call_later(max(seconds, 0.0), self._wake_here)
        try:
            await self._woken
        finally:
            if timer is not None:
                timer.cancel()

    def _wake_here(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)


class Waiters:
    """Those who wait for one thing. Not locked: the caller holds the broker's lock."""

    def __init__(self) -> None:
        self._waiting: set[Waiter] = set()

    def add(self, due: float | None = None) -> Waiter:
        """A waiter for the running coroutine; `discard` it when its wait is over."""
        waiter = Waiter(due)
        self._waiting.add(waiter)
        return waiter

    def discard(self, waiter: Waiter) -> None:
        """Forget a waiter, woken or not."""
        self._waiting.discard(waiter)

    def wake(self, due: float = -math.inf) -> None:
        """Wake all who would sleep past `due`.

        All, not one: the one might be cancelled before it looks, and its wake-up would be lost.
        """
        if not self._waiting:
            return
        for waiter in [waiter for waiter in self._waiting if waiter.due > due]:
            self._waiting.discard(waiter)
            waiter.wake()
