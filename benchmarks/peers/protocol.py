"""How the benchmark talks to a peer: a line of JSON per slice on stdin, a line with its seconds back.

The clock starts when the messages are in this process and stops with the last committed effect; what
a peer writes down after that about its finished jobs is not counted against it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

Message = tuple[str, str]
"""Id and payload, as JSON text."""

INSERT = "INSERT INTO handmade (consumer, message_id, status) VALUES ('peer', {0}, 'completed') ON CONFLICT DO NOTHING"
UPDATE = "UPDATE account SET balance = balance + {0} WHERE id = {1}"
ASYNCPG = (INSERT.format("$1"), UPDATE.format("$1", "$2"))
PSYCOPG = (INSERT.format("%s"), UPDATE.format("%s", "%s"))


class Counter:
    """Counts effects from any thread, and tells when a slice's last one is there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = 0
        self._finished = threading.Event()
        self.ended = 0.0

    def expect(self, count: int) -> None:
        self._left = count
        self._finished.clear()

    def done(self) -> None:
        """One more effect is committed."""
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.ended = time.perf_counter()
                self._finished.set()

    async def finished(self) -> None:
        while not self._finished.is_set():  # noqa: ASYNC110 - set from threads
            await asyncio.sleep(0.001)


class Held:
    """A few asyncpg connections, each held; cheaper than any pool."""

    def __init__(self, connections: list[Any]) -> None:
        self._free = connections
        self._places = asyncio.Semaphore(len(connections))

    async def apply(self, message_id: str, payload: str) -> None:
        """The exact effect: insert complete, then update, in one transaction."""
        payment = json.loads(payload)
        async with self._places:
            conn = self._free.pop()
            try:
                await conn.execute("BEGIN")
                if await conn.execute(ASYNCPG[0], message_id) == "INSERT 0 1":
                    changed = await conn.execute(ASYNCPG[1], payment["amount"], payment["account"])
                    assert changed == "UPDATE 1"
                await conn.execute("COMMIT")
            finally:
                self._free.append(conn)


async def serve(send: Callable[[list[Message]], Awaitable[None]], counter: Counter) -> None:
    """Answer slices until stdin ends."""
    loop = asyncio.get_running_loop()
    print(json.dumps({"ready": True}), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        messages = [(pair[0], pair[1]) for pair in json.loads(line)]
        counter.expect(len(messages))
        started = time.perf_counter()
        await send(messages)
        await counter.finished()
        print(json.dumps({"seconds": counter.ended - started}), flush=True)
