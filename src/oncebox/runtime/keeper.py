"""The process's sign of life: heartbeat and leases, in a thread of their own.

A handler that keeps the event loop busy for a minute must not look like a dead process, so this
thread has its own loop and its own connection.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable

from oncebox.core.queries import Queries
from oncebox.core.steps import Call
from oncebox.core.work import Item
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings
from oncebox.errors import LockBusy
from oncebox.runtime.sessions import finished

log = logging.getLogger("oncebox")

SIGN_OFF_SECONDS = 15.0
"""How long it is tried again where a lock is in the way."""


def new_worker_id() -> str:
    """A name for this incarnation of the process; never the same twice."""
    return f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"


class Keeper(threading.Thread):
    """Beats every `beat_seconds` until `stop`, and extends the leases that are kept."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        worker: str,
        beat_seconds: float,
        lapse_seconds: float = 10.0,
    ) -> None:
        super().__init__(name="oncebox-keeper", daemon=True)
        self._lapse_seconds = lapse_seconds
        self._gap_seconds = max(lapse_seconds / 2, 2 * beat_seconds)
        self._beaten = -math.inf
        self._steady_since = math.inf
        self.worker = worker
        self._database = database
        self._settings = settings
        self._beat_seconds = beat_seconds
        self._leases: dict[str | None, tuple[Item, float, float]] = {}
        """By token (two workers here may hold the same message, one of them too late): the item, its lease,
        and when to stop extending it."""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._bell = threading.Event()
        self.first_beat = threading.Event()

    def keeper_of(
        self, lease_seconds: float, longest_seconds: float = math.inf
    ) -> Callable[[Item, bool], None]:
        """How a worker says that an item's lease is to be kept, or no longer.

        Never for longer than `longest_seconds`: a call that hangs in a thread can't be stopped, but its
        message must not hang with it.
        """

        def keep(item: Item, on: bool) -> None:
            with self._lock:
                if on:
                    self._leases[item.token] = (item, lease_seconds, time.monotonic() + longest_seconds)
                else:
                    self._leases.pop(item.token, None)
            if on and lease_seconds / 3 < self._beat_seconds:
                self._bell.set()  # the pause that is running was chosen without this lease

        return keep

    def stop(self) -> None:
        """End after the last beat; the worker's rows are withdrawn."""
        self._stopping.set()
        self._bell.set()

    def run(self) -> None:
        """The thread."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        session: Session | None = None
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            try:
                if session is None:
                    session = await self._database.connect_async(self._settings)
                await self._beat(session)
                self._note_beat()
                self.first_beat.set()
            except Exception as error:
                log.debug("heartbeat missed: %s", error)
                if session is not None:
                    await finished(session.close())
                    session = None
            await loop.run_in_executor(None, self._bell.wait, self._pause_seconds())
            self._bell.clear()
        if session is not None:
            try:
                await self._sign_off(session)
            except Exception as error:
                log.warning(
                    "worker %s could not sign off: %s; its row stays until another process takes note",
                    self.worker,
                    error,
                )
            finally:
                await finished(session.close())

    def _note_beat(self) -> None:
        now = time.monotonic()
        if now - self._beaten > self._gap_seconds:
            self._steady_since = now
        self._beaten = now

    def may_judge(self) -> bool:
        """Whether the silence of others means anything: only to who has been heard of all the time itself.

        A database that was away, or a handler that held SQLite's only write lock for longer than a heartbeat may be
        old, has kept everybody silent; the living get the time to beat first.
        """
        now = time.monotonic()
        heard = now - self._beaten <= self._gap_seconds
        return heard and now - self._steady_since > self._lapse_seconds

    async def _sign_off(self, session: Session) -> None:
        """Leave nothing behind. Somebody else's handler may hold SQLite's only write lock for a while."""
        deadline = time.monotonic() + SIGN_OFF_SECONDS
        while True:
            try:
                for query in (self._queries.retire_hands, self._queries.retire):
                    await finished(session.side(Call(query, {"id": self.worker})))
                return
            except LockBusy:
                if time.monotonic() > deadline:
                    raise

    @property
    def _queries(self) -> Queries:
        return self._database.queries

    def _pause_seconds(self) -> float:
        with self._lock:
            shortest = min(
                (seconds for _, seconds, _ in self._leases.values()), default=self._beat_seconds * 3
            )
        return min(self._beat_seconds, shortest / 3)

    async def _beat(self, session: Session) -> None:
        params = {"id": self.worker, "host": socket.gethostname(), "pid": os.getpid()}
        await finished(session.side(Call(self._queries.heartbeat, params)))
        with self._lock:
            now = time.monotonic()
            leases = [(item, seconds) for item, seconds, end in self._leases.values() if now < end]
        for seconds in {seconds for _, seconds in leases}:
            items = [item for item, lease in leases if lease == seconds]
            params = {"seqs": [item.seq for item in items], "tokens": [item.token for item in items]}
            await finished(session.side(Call(self._queries.extend, {**params, "seconds": seconds})))
