"""Taking entries: what is overdue first, then what is new, and nothing that nobody waits for.

A read waits on the server, on a connection of its own. When whoever waits for it is cancelled, the read is
ended on the server and what it brought is released: dropping the connection instead could leave an entry in
the hands of a consumer that does not know it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Coroutine
from typing import Any

from oncebox.brokers.redis.connection import TRANSFER_SECONDS, Server
from oncebox.brokers.redis.entries import Fields
from oncebox.brokers.redis.scripts import Scripts
from oncebox.errors import BrokerUnavailable, ConfigError

log = logging.getLogger("oncebox")

POLL_SECONDS = 0.25
"""How often a waiting source looks for what others gave back or left behind."""
PATIENCE_SECONDS = 2.0
"""How long a read that is to end may take to end."""
BATCH_BYTES = 32 * 1024 * 1024
"""How much is meant to be taken at once; Redis itself counts entries, not bytes."""

Taken = list[tuple[bytes, Fields, int]]
"""Entry id, fields and delivery count."""


class Reader:
    """For one consumer, from its opening to its closing."""

    def __init__(self, server: Server, scripts: Scripts, visibility_seconds: float) -> None:
        self._closed = False
        self._server = server
        self._scripts = scripts
        self._visibility_ms = max(1, int(visibility_seconds * 1000))
        self._client = server.client(again=True, single=True)
        self._client_id = 0
        self._busy = asyncio.Lock()
        self._task: asyncio.Future[Taken] | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._cursor = b"0-0"
        self._poll_at = 0.0
        self._dues: list[float] = []
        self._batch_max = 100

    async def take(self, limit: int) -> Taken:
        """What is there, `limit` at most; nothing when it is time to look again, or closed. Cancel-safe."""
        turn = _Turn()
        self._task = task = asyncio.ensure_future(self._take(limit, turn))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            mine = asyncio.current_task()
            if task.cancelled() and (mine is None or not mine.cancelling()):
                return []  # by `close`, and not whoever waits here
            turn.abandoned = True
            self._run(self._give_back(task))
            raise

    def look(self, seconds: float) -> None:
        """Something comes back after `seconds`: look for it then."""
        # The server counts in milliseconds, and begins a moment after us.
        heapq.heappush(self._dues, time.monotonic() + seconds + 0.002)
        if seconds < POLL_SECONDS and self._busy.locked():
            self._run(self._unblock())

    async def settle(self) -> None:
        """Wait until everything that was given up is given back."""
        while self._errands:
            await asyncio.gather(*self._errands, return_exceptions=True)

    async def close(self) -> None:
        """End a read that waits, and disconnect. A server that does not answer is not waited for."""
        self._closed = True
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._busy.locked():
            await self._unblock()
            if time.monotonic() > deadline and self._task is not None:
                self._task.cancel()
            await asyncio.sleep(0.01)
        await self.settle()
        await self._client.aclose()

    async def _take(self, limit: int, turn: _Turn) -> Taken:
        async with self._busy:
            if turn.abandoned or self._is_closed():
                return []
            count = min(limit, self._batch_max)
            try:
                async with self._server.asking(TRANSFER_SECONDS):
                    taken = await self._claim(count) if self._wait_seconds() <= 0 else []
                    taken = taken or await self._read(count)
            except ConfigError as error:
                # At start a reason to stop; later on the server may let us in again.
                raise BrokerUnavailable(str(error)) from error
            except BaseException:
                self._client_id = 0
                raise
            self._fit_batch(taken, count)
            if self._is_closed():
                await self._release(taken)
                return []
            return taken

    async def _claim(self, count: int) -> Taken:
        now = time.monotonic()
        while self._dues and self._dues[0] <= now:
            heapq.heappop(self._dues)
        self._cursor, found, trimmed = await self._scripts.claim(self._visibility_ms, self._cursor, count)
        if not found and self._cursor == b"0-0":
            self._poll_at = now + POLL_SECONDS
        if trimmed:
            log.error(
                "stream %s: %d entries were trimmed before they were handled, from %s on; trim by what is handled "
                "(XTRIM MINID), not by length",
                self._scripts.stream,
                len(trimmed),
                trimmed[0].decode(),
            )
        return [(entry, fields, int(number)) for entry, fields, number in found]

    async def _read(self, count: int) -> Taken:
        if not self._client_id:
            self._client_id = int(await self._client.client_id())
        if self._is_closed():
            return []
        wait_ms = max(1, int(min(self._wait_seconds(), POLL_SECONDS) * 1000))
        reply = await self._scripts.read(self._client, count, wait_ms)
        return [(entry, fields, 1) for _, entries in reply or () for entry, fields in entries]

    def _is_closed(self) -> bool:
        return self._closed

    def _wait_seconds(self) -> float:
        """Until it is time to look for what is overdue."""
        return min([self._poll_at, *self._dues[:1]]) - time.monotonic()

    def _fit_batch(self, taken: Taken, count: int) -> None:
        """Fewer at once when entries are large."""
        size = sum([sum(map(len, fields)) for _, fields, _ in taken])
        if size > BATCH_BYTES:
            self._batch_max = max(1, len(taken) * BATCH_BYTES // size)
        elif len(taken) == count:
            self._batch_max = min(2 * self._batch_max, 10_000)

    async def _give_back(self, task: asyncio.Future[Taken]) -> None:
        while not task.done():
            await self._unblock()
            await asyncio.wait({task}, timeout=0.02)
        if not task.cancelled() and task.exception() is None:
            await self._release(task.result())

    async def _release(self, taken: Taken) -> None:
        async with self._server.asking():
            await self._scripts.answer("release", "", [(entry, count) for entry, _, count in taken])

    async def _unblock(self) -> None:
        """End a read that waits on the server; without effect when none does."""
        if self._client_id:
            try:
                async with self._server.asking(PATIENCE_SECONDS):
                    await self._scripts.client.client_unblock(self._client_id)
            except (BrokerUnavailable, ConfigError) as error:
                log.debug("redis: %s", error)

    def _run(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)


class _Turn:
    """One read, until whoever wanted it is gone."""

    abandoned = False
