"""A broker, a database and worker processes that can be hurt, with a log of what was seen."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from oncebox import Message
from oncebox.brokers.memory import Memory, QueueStats
from oncebox.core.reap import reap
from oncebox.core.run import run
from oncebox.core.work import Work
from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings
from oncebox.policy import Policy
from oncebox.runtime.performer import Performer
from oncebox.runtime.schema import migrate
from tests.crash import events as log
from tests.crash.checker import Seen, Sent, Tables, violations
from tests.crash.effects import create_table, reader, tables
from tests.crash.events import Events
from tests.crash.nursery import Child, Nursery
from tests.crash.worker import QUEUE, Spec
from tests.waiting import eventually

PATIENCE_SECONDS = 30.0


class Broker:
    """A `Memory` served to other processes, from a loop in a thread of its own."""

    def __init__(self, visibility_seconds: float) -> None:
        self.memory = Memory()
        self.memory.queue(QUEUE, visibility_seconds=visibility_seconds)
        self.address = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="broker", daemon=True)
        self._thread.start()
        assert self._ready.wait(30)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with self.memory.serve() as self.address:
            self._ready.set()
            await self._stop.wait()

    @property
    def stats(self) -> QueueStats:
        return self.memory.stats()[QUEUE]

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)


class Harness:
    """One consumer's world. Workers come from `start`, and are asked to end by `finish`."""

    def __init__(
        self,
        url: str,
        variant: str,
        folder: Path,
        nursery: Nursery,
        *,
        visibility_seconds: float = 30.0,
        **words: Any,
    ) -> None:
        self.plain_url = url
        self.broker = Broker(visibility_seconds)
        self.nursery = nursery
        self.events = Events(folder / "events")
        self.gate = folder / "gate"
        migrate(Database(url))
        create_table(url)
        self.spec = Spec(
            url=driver_url(url, variant), variant=variant, address=self.broker.address,
            events=str(self.events.path), gate=str(self.gate), **words,
        )  # fmt: skip
        self.sent: list[Sent] = []
        self.workers: list[Child] = []
        self._closed = False
        self.stopped = 0
        """Workers that stood still for so long that they count as dead."""

    # The world.

    def send(self, *ids: str, ending: str | None = "done", duplicates: int = 0) -> None:
        """Send messages, all at once; each is put into the queue `1 + duplicates` times."""
        kind = "long" if self.spec.long else "t"
        self.sent += [Sent((self.spec.consumer, "s", name), b"{}", ending) for name in ids]
        messages = [Message(id=name, source="s", type=kind, payload=b"{}") for name in ids]
        self.broker.memory.put(QUEUE, *messages, duplicates=duplicates)

    def start(self, **changes: Any) -> Child:
        """A new worker process, with these words of its spec changed; returns when it runs."""
        spec = msgspec.structs.replace(self.spec, **changes)
        child = self.nursery.fork("tests.crash.worker:main", spec=msgspec.to_builtins(spec))
        self.workers.append(child)
        eventually(lambda: child.status is not None or self.seen("running", pid=child.pid), PATIENCE_SECONDS)
        assert child.status in (None, -9), child.output
        return child

    def open_gate(self) -> None:
        """Let go who waits."""
        self.gate.touch()

    def reap(self, child: Child) -> None:
        """Do as a parent does whose child has died: what it had in hand is counted now."""
        (started,) = self.seen("named", pid=child.pid)
        database = Database(self.plain_url)
        session = database.connect(Settings())
        work = Work("-", database.queries, Policy())
        performer = Performer(work, session, lambda call: None, is_async=False)
        try:
            eventually(lambda: run(reap(work, started["worker"], 0.0), performer))
        finally:
            session.close()

    # What is seen.

    def seen(self, *names: str, **details: Any) -> list[dict[str, Any]]:
        """Events so far."""
        found = self.events.all(*names)
        return [event for event in found if all(event.get(name) == value for name, value in details.items())]

    def wait_for(self, name: str, seconds: float = PATIENCE_SECONDS, **details: Any) -> dict[str, Any]:
        """The first such event, once it is there."""
        return eventually(lambda: self.seen(name, **details), seconds)[0]

    def tables(self) -> Tables:
        """What the database says now."""
        with closing(reader(self.plain_url)) as connection:
            return tables(connection, self.spec.consumer)

    def look(self, text: str) -> list[tuple[Any, ...]]:
        """Rows of a query, now."""
        with closing(reader(self.plain_url)) as connection:
            rows: list[tuple[Any, ...]] = connection.execute(text).fetchall()
            return rows

    def is_quiet(self) -> bool:
        """Nothing is on its way any more, at the broker or in the queue."""
        stats = self.broker.stats
        return not (stats.ready or stats.delayed or stats.in_flight) and not self.tables().queue

    # The end.

    def settle(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until nothing is on its way."""
        eventually(self.is_quiet, seconds)

    def finish(self, *, forgotten: int = 0, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until all is quiet, end the workers in order, and hold everything against the invariants."""
        self.settle(seconds)
        for child in self.workers:
            if child.status is None:
                child.kill(signal.SIGTERM)
                assert child.wait(PATIENCE_SECONDS) == 0, child.output[-3000:]
        found = self.violations(forgotten=forgotten)
        assert not found, "\n".join(found) + "\n" + self.story()

    def violations(self, *, forgotten: int = 0, quiet: bool = True) -> list[str]:
        """What the checker says."""
        events = self.events.all()
        dead = [child.pid for child in self.workers if child.status == -9]
        seen = Seen(
            sent=self.sent,
            acked=log.acked(events),
            starts=log.starts(events, dead),
            deliveries=msgspec.structs.asdict(self.broker.stats) if quiet else None,
            quiet=quiet,
            deaths=len(dead) + self.stopped,
            forgotten=forgotten + int(self.spec.policy.get("mode", "inline") == "inline"),
        )
        return violations(seen, self.tables())

    def story(self) -> str:
        """What happened, for whoever has to find out why."""
        lines = [str(event) for event in self.events.all()][-60:]
        for child in self.workers:
            lines += [f"-- worker {child.pid}, status {child.status}:", child.output[-2500:]]
        return "\n".join(lines)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for child in self.workers:
            if child.status is None:
                child.kill(signal.SIGCONT)
                child.kill()
        self.broker.close()
        self.events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, GeneratorExit):
            print(self.story())
        self.close()


def driver_url(url: str, variant: str) -> str:
    """The URL that picks the variant's driver."""
    return url.replace("postgresql://", "postgresql+asyncpg://") if variant == "asyncpg" else url
