"""Several worker processes under one parent: started, told to stop, restarted, and reaped.

A child is a fresh interpreter that imports the app for itself. The parent chooses its worker id, so
that a killed child's messages are counted as deaths at once, not when its heartbeat lapses. Children
are told to stop over a pipe, not by signals: a terminal or a service manager may signal the whole
group, and a child that heard its parent too would take the echo for "stop at once". The pipe's end
also tells a child that its parent is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path

from oncebox.core.queries import Queries
from oncebox.core.reap import reap
from oncebox.core.steps import Begin, Call, Commit, Fetch, Op, Rollback
from oncebox.core.work import Work, new_token
from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings
from oncebox.errors import OnceboxError
from oncebox.policy import Policy
from oncebox.runtime.inspect import Reader
from oncebox.runtime.keeper import new_worker_id

log = logging.getLogger("oncebox")

WORKER_VARIABLE = "ONCEBOX_SUPERVISED_WORKER"
"""Set for a child: its worker id, and that its standard input is the parent's pipe."""
DRAIN = b"d"
STOP = b"s"
PLACE_VARIABLE = "ONCEBOX_SUPERVISED_PLACE"
"""Set for a child of a parent that gives its children a folder: the file in it that is this child's, and was its
predecessor's."""
CONFIG_EXIT = 78
"""A child's exit code for "this can't work until something is changed": not worth a restart."""

STEADY_SECONDS = 10.0
"""A child that lived this long did not die of starting."""
RESTART_MAX_SECONDS = 30.0
DRAIN_EXTRA_SECONDS = 10.0
STOP_SECONDS = 6.0
REAP_TRIES = 12


class Supervisor:
    """Keeps `count` children of `command` alive until told to stop."""

    def __init__(
        self,
        database: Database,
        command: Sequence[str],
        count: int,
        *,
        drain_seconds: float = 30.0,
        listening: socket.socket | None = None,
        folder: Path | None = None,
    ) -> None:
        self.database = database
        self.command = list(command)
        self.count = count
        self.drain_seconds = drain_seconds
        self._folder = folder
        self._listening = listening
        """Handed down to every child: a connection that one leaves behind in the line is another's."""
        self._children: dict[str, Process] = {}
        self._ending = asyncio.Event()
        self._stopped = False
        self._misconfigured = False
        self._reaps: set[asyncio.Task[None]] = set()
        self._kill: asyncio.TimerHandle | None = None

    async def run(self) -> bool:
        """Until `drain` or `stop`, and until every child has ended. False when children can't start
        because of what they are told to run: the reason is in their own log lines."""
        await asyncio.gather(*(self._keep(place) for place in range(self.count)))
        if self._kill is not None:
            self._kill.cancel()
        if self._reaps:
            await asyncio.wait(self._reaps, timeout=STOP_SECONDS)
        return not self._misconfigured

    def drain(self) -> None:
        """Have every child finish what it has in hand and end; one that does not is killed in the end."""
        self._end(DRAIN, self.drain_seconds + DRAIN_EXTRA_SECONDS)

    def stop(self) -> None:
        """Have every child roll back what it has in hand and end. That is no death of theirs: what one
        could not withdraw for itself is withdrawn for it."""
        self._stopped = True
        self._end(STOP, STOP_SECONDS)

    def _end(self, word: bytes, seconds: float) -> None:
        self._ending.set()
        if self._listening is not None:
            # Ours is one more handle on the port: kept open, connections would stand in a line nobody serves.
            self._listening.close()
        for child in self._children.values():
            self._tell(child, word)
        if self._kill is not None:
            self._kill.cancel()
        self._kill = asyncio.get_running_loop().call_later(seconds, self._kill_all)

    def _tell(self, child: Process, word: bytes) -> None:
        if child.stdin is not None and not child.stdin.is_closing():
            child.stdin.write(word)

    def _kill_all(self) -> None:
        for child in self._children.values():
            log.error("worker process %d did not end in time; killed", child.pid)
            child.kill()

    async def _keep(self, place: int) -> None:
        """One place among the children: start, wait, count, start again."""
        short_lives = 0
        while not self._ending.is_set():
            worker, started = new_worker_id(), time.monotonic()
            child = await self._start(worker, place)
            code = await child.wait()
            self._children.pop(worker, None)
            if child.stdin is not None:
                child.stdin.close()
            if code != 0:
                self._count_out(worker)
            if code == CONFIG_EXIT:
                self._misconfigured = True
                self.drain()
            if self._ending.is_set():
                return
            short_lives = 0 if time.monotonic() - started > STEADY_SECONDS else short_lives + 1
            pause = restart_seconds(short_lives)
            log.warning("worker process %d %s; starting another in %.1f s", child.pid, ending(code), pause)
            try:
                await asyncio.wait_for(self._ending.wait(), pause)
            except TimeoutError:
                continue

    async def _start(self, worker: str, place: int) -> Process:
        shared = {} if self._folder is None else {PLACE_VARIABLE: str(self._folder / f"{place}.json")}
        # A session of its own: the terminal's Ctrl-C is for the parent, which passes it on in order.
        child = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=PIPE,
            env={**os.environ, **shared, WORKER_VARIABLE: worker},
            start_new_session=True,
            pass_fds=() if self._listening is None else (self._listening.fileno(),),
        )
        self._children[worker] = child
        log.info("worker process %d started (%s)", child.pid, worker)
        if self._ending.is_set():
            self._tell(child, DRAIN)
        return child

    def _count_out(self, worker: str) -> None:
        """Settle the child's account beside everything else: the next one need not wait for it."""
        task = asyncio.create_task(self._withdraw(worker) if self._stopped else self._reap(worker))
        self._reaps.add(task)
        task.add_done_callback(self._reaps.discard)

    async def _reap(self, worker: str) -> None:
        """Move what the child had in hand into deaths. Its server session may hold row locks for some
        time after it, so this is tried for a while; then it is left to the others and the heartbeat."""
        work = Work("-", self.database.queries, Policy(), worker=worker)
        reader = Reader(self.database, Settings(lock_timeout_seconds=2.0))
        try:
            for attempt in range(REAP_TRIES):
                try:
                    if await reader.ask(reap(work, worker, 0.0)):
                        log.info("worker %s: what it had in hand is counted as a death", worker)
                        return
                    if not await reader.ask(_is_known(work, worker)):
                        return
                except OnceboxError as error:
                    log.warning("worker %s can't be counted out yet: %s", worker, error)
                await asyncio.sleep(restart_seconds(attempt))
        finally:
            await reader.close()

    async def _withdraw(self, worker: str) -> None:
        """Take back the markers of a child that was stopped on purpose, uncounted."""
        reader = Reader(self.database, Settings(lock_timeout_seconds=2.0))
        try:
            await reader.ask(_retire(self.database.queries, worker))
        except OnceboxError as error:
            log.warning("worker %s could not be withdrawn, its messages count as a death: %s", worker, error)
        finally:
            await reader.close()


def _retire(queries: Queries, worker: str) -> Op[None]:
    token = new_token()
    calls = (Call(queries.retire_hands, {"id": worker}), Call(queries.retire, {"id": worker}))
    try:
        yield Begin(token)
        yield Commit(token, calls)
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise


def _is_known(work: Work, worker: str) -> Op[bool]:
    rows = yield Fetch(Call(work.queries.status_workers, {}))
    return any(row[0] == worker for row in rows)


def restart_seconds(short_lives: int) -> float:
    """At once after a long life, then longer and longer, spread out."""
    if short_lives == 0:
        return 0.0
    return min(RESTART_MAX_SECONDS, 0.25 * 2.0 ** min(short_lives, 10)) * random.uniform(0.5, 1.0)


def ending(code: int) -> str:
    """How a process ended, for people."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
