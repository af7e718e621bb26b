"""The relay at work: woken by the process's own commits and by NOTIFY, polling as the truth."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any

from oncebox.core import relay as flow
from oncebox.core.relay import Outgoing, Relaying
from oncebox.core.run import run_async
from oncebox.core.steps import Call, Op, Publish, Side, Step
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings
from oncebox.errors import DatabaseUnavailable, UsageError
from oncebox.runtime.pipes import Pipe, Pipes, Routes, routes
from oncebox.runtime.sessions import finished
from oncebox.runtime.workers import pause_seconds

__all__ = ["Bell", "Relay", "Routes", "listen", "routes"]

log = logging.getLogger("oncebox")

POLL_SECONDS = 0.5
LOOK_SECONDS = 0.05
"""A look for something to publish that finds nothing and takes longer than this is followed by a rest."""
CLOSE_SECONDS = 2.0
"""How long a relay that stops waits for confirmations; what is not confirmed by then is sent again."""
CHANNEL = "oncebox_outbox"


class Bell:
    """Rung after a commit that left something to publish; from any thread, as often as one likes."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._rung = False

    def ring(self) -> None:
        """Wake the relay soon."""
        if not self._rung:
            self._rung = True
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float) -> bool:
        """Until it rings or the time is over; whether it rang."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        self._rung = False
        return True


class Relay:
    """One relay of this process. Several, here and on other machines, divide the keys."""

    def __init__(
        self,
        database: Database,
        sinks: Routes,
        name: str,
        bell: Bell,
        *,
        lease_seconds: float = 10.0,
        keep_seconds: float = 0.0,
    ) -> None:
        self.database = database
        self.pipes = Pipes(sinks)
        self.bell = bell
        self.relaying = Relaying(
            database.queries, name, lease_seconds=lease_seconds, keep_seconds=keep_seconds
        )
        self._session: Session | None = None
        self._turns = asyncio.Lock()
        """One statement at a time: pipes settle while others are filled."""
        self._leased_until = 0.0
        self._rest_seconds = 0.0
        self._swept = time.monotonic()

    async def open(self) -> None:
        """Open every sink; what a topology check says is raised."""
        for pipe in self.pipes.all:
            await pipe.sink.open()

    async def close(self) -> None:
        """Wait a moment for what is on its way, give the slots back, then let sinks and connection go."""
        try:
            if tasks := self._tasks():
                await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            await self._abandon()
            if self._session is not None:
                await self._run(flow.release(self.relaying))
        except Exception as error:
            log.debug("slots were not given back: %s", error)
        finally:
            await self._disconnect()
            for pipe in self.pipes.all:
                await pipe.sink.close()

    async def run(self) -> None:
        """Publish what is due, until cancelled."""
        lost = 0
        while True:
            try:
                busy = await self.step()
                lost = 0
            except Exception as error:
                lost += 1
                if lost in (1, 5) or lost % 30 == 0:
                    log.warning("relay: %s; trying again (%d)", error, lost)
                await self._abandon()
                await self._disconnect()
                await asyncio.sleep(pause_seconds(lost))
                continue
            if not busy:
                await asyncio.sleep(self._rest_seconds)
                await self.bell.wait(self.pipes.wait_seconds(POLL_SECONDS))

    async def turn(self) -> int:
        """One step, and all that it set going. How many rows there were."""
        count = await self.step()
        if tasks := self._tasks():
            await asyncio.wait(tasks)
        self._collect()
        return count

    async def step(self) -> int:
        """Renew the lease when a third of it is gone, then take a batch and hand it to its pipes.

        How many rows were dealt with; does not wait for any sink. Raises what a pipe could not write down.
        """
        self._collect()
        if self._session is None:
            self._session = await self.database.connect_async(Settings())
        now = time.monotonic()
        if now > self._leased_until:
            self._leased_until = now + self.relaying.lease_seconds / 3
            await self._run(flow.lease(self.relaying))
        count, self._rest_seconds = 0, 0.0
        if any(pipe.away_seconds <= 0 for pipe in self.pipes.all):
            count = await self._take()
            took = time.monotonic() - now
            # Behind a long line for a sink that is away, looking is not free: no more than half of the time.
            self._rest_seconds = took if not count and took > LOOK_SECONDS else 0.0
        if self.relaying.keep_seconds and now - self._swept > 10:
            self._swept = now
            params = {"seconds": self.relaying.keep_seconds, "limit": 1000}
            await self._side(Call(self.database.queries.outbox_sweep, params))
        return count

    async def _take(self) -> int:
        away = self.pipes.away()
        rows: list[Outgoing] = await self._run(flow.take(self.relaying, away=away))
        groups: dict[Pipe, list[Outgoing]] = {}
        count = 0
        for row in rows:
            kind = row.message.type
            known = self.pipes.knows(kind)
            pipe = self.pipes.of(kind)
            if pipe is None:
                error = UsageError(f"no sink for type {kind!r}; add a pattern to App(sink=…)")
                await self._run(flow.park(self.relaying, [row], error))
                count += 1
            elif pipe.away_seconds <= 0:
                groups.setdefault(pipe, []).append(row)
                count += 1
            else:
                # Seen for the first time while its sink is away: the next look leaves it out.
                count += not known
        for pipe, batch in groups.items():
            task = pipe.start(partial(self._send, pipe, batch), self.pipes.pause)
            task.add_done_callback(lambda _: self.bell.ring())
        return count

    async def _send(self, pipe: Pipe, batch: list[Outgoing]) -> bool:
        def perform(step: Step) -> Any:
            return pipe.publish(step.outgoing) if isinstance(step, Publish) else self._perform(step)

        return await run_async(flow.send(self.relaying, batch, keeps_order=pipe.keeps_order), perform)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [pipe.task for pipe in self.pipes.all if pipe.task is not None]

    def _collect(self) -> None:
        """Free the pipes whose batch is through; what went wrong in one is raised."""
        done = [task for task in self._tasks() if task.done()]
        for pipe in self.pipes.all:
            pipe.task = None if pipe.task in done else pipe.task
        for task in done:
            task.result()

    async def _abandon(self) -> None:
        """Stop what is on its way. What was not marked is sent again, with the same id."""
        tasks = self._tasks()
        for pipe in self.pipes.all:
            pipe.task = None
        for task in tasks:
            task.cancel()
        if tasks:
            # Bounded: a sink that takes no notice of being cancelled must not stop the relay for good.
            done, _ = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            await asyncio.gather(*done, return_exceptions=True)

    async def _disconnect(self) -> None:
        session, self._session = self._session, None
        self._leased_until = 0.0
        if session is not None:
            await finished(session.close())

    async def _run(self, op: Op[Any]) -> Any:
        return await run_async(op, self._perform)

    def _perform(self, step: Step) -> Any:
        assert isinstance(step, Side)
        return self._side(step.call)

    async def _side(self, call: Call) -> Any:
        async with self._turns:
            if self._session is None:
                raise DatabaseUnavailable("the relay has lost its connection")
            return await finished(self._session.side(call))


async def listen(database: Database, bell: Bell) -> None:
    """Ring whenever any process of any machine has left something to publish, until cancelled.

    Only a hint: through a transaction pooler nothing is heard, and the relay polls.
    """
    lost = 0
    while True:
        session: Any = None
        try:
            session = await database.connect_async(Settings())
            await session.listen(CHANNEL, bell.ring)
        except Exception as error:
            lost += 1
            log.debug("not listening: %s", error)
        finally:
            if session is not None:
                await finished(session.close())
        await asyncio.sleep(pause_seconds(lost + 1))
