"""The services as processes: started, killed, started again, and all gone at the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[2]
SEATS = {"intake": 1, "tracking": 2, "notify": 2}
STOP_SECONDS = 20.0
PAUSE_SECONDS = 0.3


class Seat:
    """A place for one process of a service; whoever sits there is replaced when it is gone."""

    def __init__(
        self, service: str, environment: Mapping[str, str], listening: socket.socket | None, log: Path
    ) -> None:
        self.service = service
        self._environment = {**os.environ, **environment, "PYTHONPATH": str(ROOT)}
        self._passed = () if listening is None else (listening.fileno(),)
        serving = [word for number in self._passed for word in ("--http", f"fd:{number}")]
        app = f"examples.delivery.{service}:app"
        self._command = [sys.executable, "-m", "oncebox.cli", "run", app, "--log-level", "warning", *serving]
        self._log = log
        self.process: Process | None = None
        self.ending = False

    async def keep(self) -> None:
        """Have a process here until `ending`. One that ends by itself (its broker was away) is started again."""
        while not self.ending:
            with self._log.open("ab") as log:
                # A session of its own: Ctrl-C is the parent's to deal with.
                self.process = await asyncio.create_subprocess_exec(
                    *self._command,
                    cwd=ROOT,
                    env=self._environment,
                    stdout=log,
                    stderr=log,
                    pass_fds=self._passed,
                    start_new_session=True,
                )
            if await self.process.wait() not in (0, -signal.SIGKILL):
                await asyncio.sleep(PAUSE_SECONDS)

    @property
    def works(self) -> bool:
        """Whether there is a process to kill."""
        return self.process is not None and self.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """As the kernel, a supervisor or a careless person would."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)


class Crew:
    """All processes of the chain, for the length of a block."""

    def __init__(
        self,
        urls: Mapping[str, str],
        common: Mapping[str, str],
        folder: Path,
        http: Mapping[str, socket.socket],
    ) -> None:
        self.seats = [
            Seat(
                service,
                {**common, "ONCEBOX_DATABASE_URL": urls[service]},
                http.get(service),
                folder / f"{service}.log",
            )
            for service, count in SEATS.items()
            for _ in range(count)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Crew:
        self._tasks = [asyncio.create_task(seat.keep()) for seat in self.seats]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for seat in self.seats:
            seat.ending = True
        self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await asyncio.gather(*self._tasks)
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """To all of them."""
        for seat in self.seats:
            seat.signal(number)

    def anybody_works(self) -> bool:
        """Whether there is somebody to kill."""
        return any(seat.works for seat in self.seats)

    async def kill(self, chance: random.Random) -> bool:
        """Kill one of them, without a warning."""
        victims = [seat for seat in self.seats if seat.works]
        if victims:
            chance.choice(victims).signal(signal.SIGKILL)
        return bool(victims)
