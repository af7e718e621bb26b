"""Questions to a database that may not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

ANSWER_SECONDS = 5.0
"""The longest the database is waited for."""
CLOSE_SECONDS = 1.0


class Question(Generic[T]):
    """One question, asked by one at a time; who asks meanwhile gets the same answer.

    Nobody waits longer than five seconds. What takes longer is not cancelled, because a driver may wait for a
    silent server to confirm that: it goes on by itself, and the next who asks waits for it.
    """

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._ask = ask
        self._task: asyncio.Task[T] | None = None

    async def answer(self) -> T:
        """The answer, what was raised instead, or TimeoutError."""
        task = self._task
        if task is None:
            task = self._task = asyncio.create_task(self._ask())
        await asyncio.wait({task}, timeout=ANSWER_SECONDS)
        if not task.done():
            raise TimeoutError
        if self._task is task:
            self._task = None
        return task.result()

    async def close(self) -> None:
        """Ask no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_SECONDS)
