"""The relay at work: woken by the process's own commits and by NOTIFY, polling as the truth."""

from __future__ import annotations

import asyncio
import fnmatch
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from oncebox.brokers.contract import Sink
from oncebox.core import relay as flow
from oncebox.core.relay import Outgoing, Relaying
from oncebox.core.run import run_async
from oncebox.core.steps import Call, Op, Publish, Side, Step
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings
from oncebox.errors import BrokerError, BrokerUnavailable, ConfigError, UsageError
from oncebox.runtime.sessions import finished
from oncebox.runtime.workers import pause_seconds

log = logging.getLogger("oncebox")

POLL_SECONDS = 0.5
PUBLISH_TIMEOUT_SECONDS = 30.0
CHANNEL = "oncebox_outbox"

Routes = tuple[tuple[str, Sink], ...]


def routes(sink: Sink | Mapping[str, Sink] | None) -> Routes:
    """(type pattern, sink) in the order they are tried."""
    if sink is None:
        return ()
    if isinstance(sink, Mapping):
        if not all(sink):
            raise ConfigError("sink={…} maps type patterns such as 'payment.*' to sinks")
        return tuple(sink.items())
    return (("*", sink),)


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
        self.sinks = sinks
        self.bell = bell
        self.relaying = Relaying(
            database.queries, name, lease_seconds=lease_seconds, keep_seconds=keep_seconds
        )
        self._session: Session | None = None
        self._leased_until = 0.0
        self._swept = time.monotonic()

    async def open(self) -> None:
        """Open every sink; what a topology check says is raised."""
        for _, sink in self.sinks:
            await sink.open()

    async def close(self) -> None:
        """Give the slots back, then let sinks and connection go."""
        try:
            if self._session is not None:
                await self._run(flow.release(self.relaying))
        except Exception as error:
            log.debug("slots were not given back: %s", error)
        finally:
            if self._session is not None:
                await finished(self._session.close())
                self._session = None
            for _, sink in self.sinks:
                await sink.close()

    async def run(self) -> None:
        """Publish what is due, until cancelled."""
        lost = 0
        while True:
            try:
                busy = await self.turn()
                lost = 0
            except Exception as error:
                lost += 1
                if lost in (1, 5) or lost % 30 == 0:
                    log.warning("relay: %s; trying again (%d)", error, lost)
                if self._session is not None:
                    await finished(self._session.close())
                    self._session = None
                self._leased_until = 0.0
                await asyncio.sleep(pause_seconds(lost))
                continue
            if not busy:
                await self.bell.wait(POLL_SECONDS)

    async def turn(self) -> int:
        """Renew the lease when a third of it is gone, then publish a batch. How many rows there were."""
        if self._session is None:
            self._session = await self.database.connect_async(Settings())
        now = time.monotonic()
        if now > self._leased_until:
            self._leased_until = now + self.relaying.lease_seconds / 3
            await self._run(flow.lease(self.relaying))
        count: int = await self._run(flow.relay(self.relaying))
        if self.relaying.keep_seconds and now - self._swept > 10:
            self._swept = now
            params = {"seconds": self.relaying.keep_seconds, "limit": 1000}
            await finished(self._session.side(Call(self.database.queries.outbox_sweep, params)))
        return count

    async def _run(self, op: Op[Any]) -> Any:
        return await run_async(op, self._perform)

    def _perform(self, step: Step) -> Any:
        if isinstance(step, Side):
            assert self._session is not None
            return self._session.side(step.call)
        assert isinstance(step, Publish)
        return self._publish(step.outgoing)

    async def _publish(self, batch: Sequence[Outgoing]) -> list[BaseException | None]:
        """Each message to the first sink whose pattern fits; confirmations in the batch's order."""
        replies: list[BaseException | None] = [None] * len(batch)
        groups: dict[int, list[int]] = {}
        for number, row in enumerate(batch):
            found = self._route(row.message.type)
            if found is None:
                replies[number] = UsageError(
                    f"no sink for type {row.message.type!r}; add a pattern to App(sink=…)"
                )
            else:
                groups.setdefault(found, []).append(number)

        async def publish(which: int, numbers: list[int]) -> None:
            sink = self.sinks[which][1]
            try:
                async with asyncio.timeout(PUBLISH_TIMEOUT_SECONDS):
                    answers = await sink.publish([batch[number].message for number in numbers])
                if len(answers) != len(numbers):
                    raise BrokerError(f"sink {sink.name} did not answer for every message")
            except TimeoutError:
                answers = [BrokerUnavailable(f"sink {sink.name} did not confirm in time")] * len(numbers)
            except Exception as error:
                answers = [error] * len(numbers)
            for number, answer in zip(numbers, answers, strict=True):
                replies[number] = answer

        await asyncio.gather(*(publish(which, numbers) for which, numbers in groups.items()))
        return replies

    def _route(self, kind: str) -> int | None:
        for number, (pattern, _) in enumerate(self.sinks):
            if fnmatch.fnmatchcase(kind, pattern):
                return number
        return None


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
