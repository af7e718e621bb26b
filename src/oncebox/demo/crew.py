"""The demo's worker processes: started, killed, replaced, and all gone at the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from pathlib import Path

import msgspec

from oncebox.demo.order import READY, STOP_SECONDS, Order
from oncebox.errors import OnceboxError

FAILURES_MAX = 3
"""Workers that may end by themselves, one after another, before the demo gives up."""


class DemoFailed(OnceboxError):
    """The demo could not be carried through; says nothing about what was lost or doubled."""


class Seat:
    """A place for one worker: whoever sits there is replaced when it is gone."""

    def __init__(self, order: Order, log: Path, someone: asyncio.Event, spares: Iterator[int]) -> None:
        self.at_work = False
        self._order = order
        self._log = log
        self._someone = someone
        self._spares = spares
        """One for each kill to come, shared by all seats."""
        self._process: Process | None = None
        self._spare: Process | None = None
        """Started, and waiting for its order."""
        self._killed = False
        self._ending = False

    async def keep(self) -> None:
        """Have a worker here until `end`; DemoFailed when none will stay."""
        failures = 0
        try:
            while not self._ending:
                self._process, self._spare = self._spare or await self._start(), None
                if await self._instructed(self._process):
                    failures = 0
                    self.at_work = True
                    self._someone.set()
                    # The next one loads Python while this one works, so that a kill costs the run little.
                    if next(self._spares, None) is not None:
                        self._spare = await self._start()
                await self._process.wait()
                self.at_work = False
                if self._killed:
                    self._killed = False
                elif not self._ending:
                    failures += 1
                    if failures == FAILURES_MAX:
                        code = self._process.returncode
                        raise DemoFailed(f"workers end by themselves ({code}): {self._last_words()}")
        finally:
            self.at_work = False
            for process in (self._process, self._spare):
                if process is not None and process.returncode is None:
                    process.kill()
                    await process.wait()

    def kill(self) -> bool:
        """Kill the worker if one is at work here. There is no warning, and nothing it can do about it."""
        if not self.at_work or self._process is None or self._process.returncode is not None:
            return False
        self.at_work = False
        self._killed = True
        self._process.kill()
        return True

    def end(self) -> None:
        """Ask the worker to stop, and have no other. One that is only starting has nothing to finish."""
        self._ending = True
        if self._process is None or self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        if self.at_work:
            self._process.stdin.close()
        else:
            self._process.kill()

    async def _start(self) -> Process:
        # -P: a module of the user's folder must not stand in for one of ours.
        # A session of its own: Ctrl-C is the parent's to deal with.
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "oncebox.demo.worker", self._order.side,
                stdin=PIPE, stdout=PIPE, stderr=log, start_new_session=True, env=_environment(),
            )  # fmt: skip

    async def _instructed(self, process: Process) -> bool:
        """Hand over the order; True once the worker says that it is ready."""
        assert process.stdin is not None
        assert process.stdout is not None
        if self._ending:
            process.kill()
            return False
        with contextlib.suppress(ConnectionError):
            process.stdin.write(msgspec.json.encode(self._order) + b"\n")
            await process.stdin.drain()
        return (await process.stdout.readline()).strip() == READY

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no reason given"


class Crew:
    """Workers that serve one order, in tasks of a group: when the group has ended, no process is left."""

    def __init__(self, order: Order, size: int, log: Path, kills: int = 0) -> None:
        self._someone = asyncio.Event()
        spares = iter(range(kills))
        self._seats = [Seat(order, log, self._someone, spares) for _ in range(size)]
        self._tasks: list[asyncio.Task[None]] = []
        self.kills = 0

    def start(self, group: asyncio.TaskGroup) -> None:
        """Have every seat taken; an error of one ends the group."""
        self._tasks = [group.create_task(seat.keep()) for seat in self._seats]

    async def all_ready(self) -> None:
        """Wait until every seat has a worker at work."""
        while not all(seat.at_work for seat in self._seats):
            self._someone.clear()
            await self._someone.wait()

    async def kill(self, slot: int, delay_seconds: float) -> None:
        """Kill the worker of a seat, or of the next one where somebody is at work."""
        seats = self._seats[slot:] + self._seats[:slot]
        while True:
            seat = next((seat for seat in seats if seat.at_work), None)
            if seat is None:
                self._someone.clear()
                await self._someone.wait()
                continue
            await asyncio.sleep(delay_seconds)
            if seat.kill():
                self.kills += 1
                return

    async def stop(self) -> None:
        """Ask all to stop; who does not, within a bound, is killed."""
        for seat in self._seats:
            seat.end()
        _, late = await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
        for task in late:
            task.cancel()


def _environment() -> dict[str, str]:
    """The user's, but for what configures the user's own app."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ONCEBOX_")}
