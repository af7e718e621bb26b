"""The event loop that `async def` handlers run in: the test's own, or one in a thread of the kit's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
LATE_SECONDS = 1.0


class Loop:
    """Runs coroutines from a blocking thread. Made without a loop, it starts one when first needed."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result, once it is there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._running()).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="oncebox-testing", daemon=True
                )
                self._thread.start()
            return self._loop

    def at_work(self) -> set[Any]:
        """The threads and tasks that there are."""
        tasks = self.run(_tasks()) if self._loop is not None else set()
        return {*threading.enumerate(), *tasks}

    def leave_late(self, before: set[Any]) -> None:
        """Give what handlers have left running (tasks, threads) a moment to do what it does."""
        for thread in set(threading.enumerate()) - before - {self._thread, threading.current_thread()}:
            # A pool's threads stay, and wait for work; oncebox's own watch over handlers.
            if not thread.name.startswith(("ThreadPool", "asyncio", "oncebox")):
                thread.join(LATE_SECONDS)
        if self._loop is not None:
            self.run(_late(before))

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Stop a loop of the kit's own; `last` is run on it before. The test's loop is left alone."""
        if self._thread is None or self._loop is None:
            return
        if last is not None:
            self.run(last())
        self.run(_cancelled())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _tasks() -> set[Any]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def _late(before: set[Any]) -> None:
    if left := await _tasks() - before:
        await asyncio.wait(left, timeout=LATE_SECONDS)


async def _cancelled() -> None:
    tasks = await _tasks()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
