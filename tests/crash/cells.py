"""One cell: a scenario on one database, with one fault, until everything has ended.

What is at work is the runtime's own worker on real connections; only the broker is a stand-in, the
smallest one that keeps the promise: what is not acked is delivered again, and counted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec

from oncebox import App, Backoff
from oncebox.core import stored
from oncebox.core import work as core_work
from oncebox.core.outcomes import Answer, Status
from oncebox.core.place import Place as LogPlace
from oncebox.core.reap import reap_lapsed
from oncebox.core.receiving import receive
from oncebox.core.run import run, run_async
from oncebox.core.steps import Archive, Call, Op, Publish, Step
from oncebox.core.stored import bury_unknown
from oncebox.core.work import Item, Work
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings
from oncebox.runtime import workers
from oncebox.runtime.keeper import new_worker_id
from oncebox.runtime.mailbox import Mailbox, TaskMailbox, ThreadMailbox
from oncebox.runtime.members import connection_settings
from oncebox.runtime.performer import Performer
from oncebox.runtime.sessions import AsyncSideChannel, SideChannel, finished
from oncebox.runtime.workers import Crew, TaskWorker, ThreadWorker
from tests.crash.deciding import DECISIONS, archive
from tests.crash.effects import Behaviour, register
from tests.crash.events import Events
from tests.crash.faults import Ended, Fault, Steps, Stuck, sever, spoil
from tests.crash.kept import Kept
from tests.crash.planted import plant
from tests.crash.scenarios import BY_NAME, LARGE, Delivery, Scenario
from tests.crash.sending import NoSink, publish, register_call, relaying

ASYNC = ("sqlite-async", "psycopg-async", "asyncpg")
LEASE_SECONDS = 0.05
AT_ONCE = Backoff(base_seconds=0)


class Place(msgspec.Struct, frozen=True):
    """Where a cell happens; plain values, so that a child process can be told."""

    url: str
    variant: str
    scenario: str
    consumer: str
    events: str


class Lent(Protocol):
    """Connections that are open already, for work in which nothing is broken."""

    side: SideChannel
    session: Session
    kept: Kept


class HastyCrew(Crew):
    """The runtime's crew, with every performer's steps numbered."""

    steps: Steps
    session: Session | None = None
    """The worker's latest; it is closed here when the worker is given up as stuck."""

    def performer(self, work: Work, session: Session, mailbox: Mailbox, is_async: bool) -> Any:
        performer = super().performer(work, session, mailbox, is_async)
        self.session = session
        return numbered(self.steps, performer, self.side)


def numbered(count: Steps, performer: Performer, side: Any) -> Any:
    """The performer with faults around each of its steps."""

    def lose(step: Step) -> None:
        of_side = type(step).__name__ == "Side"
        if (session := side._session if of_side else performer.session) is not None:
            sever(session)

    return count.numbered(performer, lose, lambda: spoil(performer.session))


class Cell:
    """A worker of the scenario's consumer in this process, and the stand-in for its broker."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.scenario: Scenario = BY_NAME[place.scenario]
        self.events = Events(Path(place.events))
        self.is_async = place.variant in ASYNC
        sends = self.scenario.sends
        self.app = App(place.url, sink=NoSink() if sends == "publish" else None)  # type: ignore[arg-type]
        words = {"lease_seconds": LEASE_SECONDS, "payload_bytes_max": LARGE, "retry": AT_ONCE}
        policy = {**words, **self.scenario.policy}
        self.consumer = self.app.consumer(place.consumer, None, mode=self.scenario.mode, **policy)
        if sends in ("retry", "park"):
            doubtful = self.scenario.runs.startswith("settle")
            register_call(self.consumer, self.events, sends, is_async=self.is_async, doubtful=doubtful)
        else:
            behaviour = Behaviour(self.events, self.scenario.behaviour, sends=sends)
            register(self.consumer, place.variant, behaviour, long=self.scenario.long)
        if sends == "send":
            self.app.consumer(f"{place.consumer}-next", None, mode="stored")
        self.renewed()

    def renewed(self) -> Self:
        """As a new process would find itself."""
        self.pending: dict[int, Delivery] = {}
        self.mailbox: Mailbox | None = None
        self.worker: ThreadWorker | TaskWorker | None = None
        self.waiting: set[str] = set()
        self.queued: Callable[[], list[str]] | None = None
        self.id = new_worker_id()
        self.has_beaten = False
        self.kept: Kept | None = None
        """Whose connections it uses, where nothing happens that they don't survive; else its own."""
        return self

    @property
    def database(self) -> Database:
        return self.kept or self.app.database

    # What the runtime calls.

    def settle(self, items: Sequence[Item]) -> None:
        """Give the broker its answers, or note how stored messages ended; stop when all is done."""
        for item in items:
            self._settle(item)

    def _settle(self, item: Item) -> None:
        assert item.outcome is not None
        status, details = item.outcome.status, self._details(item)
        if item.delivery is not None and item.delivery not in self.pending:
            raise Stuck(f"delivery {item.delivery} was answered twice")
        if item.delivery is None:
            self.events.log("settled", status=status, **details)
            if status in (Status.PROCESSED, Status.DEAD, Status.DISCARDED):
                self.waiting.discard(item.message.id)
        elif item.outcome.answer is Answer.ACK:
            self.events.log("ack", status=status, number=item.delivery, **details)
            del self.pending[item.delivery]
            if self.scenario.mode == "inline" and status in (Status.STORED, Status.WAITING):
                self.waiting.add(item.message.id)  # it waits for its turn, and the same worker takes it
        else:
            self.events.log("nack", status=status, number=item.delivery, **details)
            delivery = self.pending[item.delivery]
            delivery.deliveries += 1
            if self.mailbox is not None:
                self.mailbox.put(self.item(delivery))
        self._stop_when_done()

    def release(self, items: list[Item]) -> None:
        """Not even tried: back in the mailbox."""
        for item in items:
            self.events.log("release", number=item.delivery, **self._details(item))
            if self.mailbox is not None:
                self.mailbox.put(self.item(self.pending[item.delivery]))

    def lost(self, gone: bool) -> None:
        """A commit whose reply was lost may have happened: then nobody will settle the message."""
        if not gone and self.queued is not None:
            self.waiting &= set(self.queued())
            self._stop_when_done()

    def _stop_when_done(self) -> None:
        if self.worker is not None and not self.pending and not self.waiting:
            self.worker.stop()

    def _details(self, item: Item) -> dict[str, Any]:
        message = item.message
        return {"consumer": self.place.consumer, "source": message.source, "id": message.id}

    def item(self, delivery: Delivery) -> Item:
        """A delivery as the intake makes it."""
        item = self.consumer.intake.from_message(delivery.message(self.scenario.long))
        item.delivery = delivery.number
        if self.scenario.marked:
            item.place = self._place(delivery)
        return item

    def _place(self, delivery: Delivery) -> LogPlace:
        """A broker reads on from the first that is not acked."""
        offset, before = ord(delivery.id), [ord(other.id) for other in self.pending.values()]
        after = max((other for other in before if other < offset), default=-1)
        return LogPlace("log", 0, offset, after, raw=delivery.spec.encode())

    # What a test calls.

    def work(
        self,
        deliveries: Iterable[Delivery],
        waiting: Iterable[str],
        steps: Steps,
        runs: str,
        lent: Lent | None = None,
    ) -> None:
        """Run the scenario's part until everything has ended, the fault ends it, or it is stuck."""
        self.pending = {delivery.number: delivery for delivery in deliveries}
        self.waiting = set(waiting)
        if self.is_async:
            go = self.kept.run if self.kept is not None else asyncio.run
            try:
                go(self._work_async(steps, runs))
            except asyncio.CancelledError:
                self.events.log("cancelled")
            return
        if lent is not None:
            self.kept = lent.kept
        side = lent.side if lent is not None else SideChannel(self.database, Settings(side=True))
        try:
            if runs in ("inline", "stored"):
                self._beat(side)
                crew = self._crew(side, steps)
                worker = ThreadWorker(crew, self.consumer.work(self.id, 1))
                self.worker, self.mailbox = worker, worker.mailbox
                self._fill(worker.mailbox)
                try:
                    worker.run()
                except (Stuck, Ended):
                    if crew.session is not None:
                        crew.session.close()
                    raise
            else:
                self._repeat(side, steps, runs, lent.session if lent is not None else None)
        finally:
            if lent is None:
                side.close()
            self.worker = self.mailbox = None

    async def _work_async(self, steps: Steps, runs: str) -> None:
        side = AsyncSideChannel(self.database, Settings(side=True))
        try:
            if runs in ("inline", "stored"):
                await finished(self._beat(side))
                worker = TaskWorker(self._crew(side, steps), self.consumer.work(self.id, 1))
                self.worker, self.mailbox = worker, worker.mailbox
                self._fill(worker.mailbox)
                await worker.run()
            else:
                await self._repeat_async(side, steps, runs)
        finally:
            await side.close()
            self.worker = self.mailbox = None

    def _crew(self, side: Any, steps: Steps) -> HastyCrew:
        crew = HastyCrew(
            self.database,
            connection_settings(self.consumer.policy),
            side,
            self.settle,
            keep=lambda item, on: None,
            load=None,
            watchdog=None,
            lost=self.lost,
            release=self.release,
        )
        crew.steps = steps
        return crew

    def _beat(self, side: Any) -> Any:
        self.has_beaten = True
        params = {"id": self.id, "host": "here", "pid": os.getpid()}
        return side(Call(self.app.database.queries.heartbeat, params))

    def _fill(self, mailbox: ThreadMailbox | TaskMailbox) -> None:
        for delivery in list(self.pending.values()):
            mailbox.put(self.item(delivery))

    def _flow(self, work: Work, runs: str) -> Op[Any]:
        if runs == "receive":
            return receive(work, [self.item(delivery) for delivery in self.pending.values()])
        if runs == "unknown":
            return bury_unknown(work, self.consumer.registry.names())
        if runs in DECISIONS:
            return DECISIONS[runs](work)
        if runs.startswith("relay"):
            return relaying(work, self.id, LEASE_SECONDS)
        return reap_lapsed(work, -1.0)

    def _performer(self, session: Session, side: Any, steps: Steps) -> Any:
        work = self.consumer.work(self.id, 1)
        performer = Performer(work, session, side, is_async=self.is_async, settle=self.settle)
        performer.hands[Publish] = lambda step: publish(step, self.events)
        performer.hands[Archive] = lambda step: archive(step, self.events)
        return numbered(steps, performer, side)

    def _repeat(self, side: Any, steps: Steps, runs: str, lent: Session | None) -> None:
        """The loop around the flows that are not a worker's: again on a fresh connection after an error."""
        for _ in range(20):
            session = lent or self.database.connect(Settings())
            try:
                run(self._flow(self.consumer.work(self.id, 1), runs), self._performer(session, side, steps))
            except Exception as error:
                self.events.log("error", text=repr(error))
            else:
                if runs != "receive" or not self.pending:
                    return
            finally:
                if lent is None:
                    session.close()
        raise Stuck("still not done after 20 turns")

    async def _repeat_async(self, side: Any, steps: Steps, runs: str) -> None:
        for _ in range(20):
            session = await self.database.connect_async(Settings())
            try:
                flow = self._flow(self.consumer.work(self.id, 1), runs)
                await run_async(flow, self._performer(session, side, steps))
            except Exception as error:
                self.events.log("error", text=repr(error))
            else:
                if runs != "receive" or not self.pending:
                    return
            finally:
                await finished(session.close())
        raise Stuck("still not done after 20 turns")


def hasten(patch: Any = setattr) -> None:
    """No pauses that only spare a server: these tests wait for events, not for time."""
    patch(workers, "POLL_SECONDS", 0.01)
    # Looks at an inline worker's queue come whenever it is idle, never by the clock: steps have numbers here.
    patch(workers, "LOOK_SECONDS", 0.0)
    patch(core_work, "OVERDUE_SECONDS", float("inf"))
    for module in (stored, workers):
        patch(module, "CHAINED_SECONDS", float("inf"))
    patch(workers, "pause_seconds", lambda times: 0.005)
    patch(stored, "CONTESTED_SECONDS", 0.02)


def attempt(
    place: dict[str, str], fault: list[Any], deliveries: list[Any], waiting: list[str], runs: str, bug: str
) -> None:
    """In a child: do the work with a fault in it that kills this process, and perhaps with a bug in it."""
    hasten()
    if bug:
        plant(bug)
    cell = Cell(msgspec.convert(place, Place))
    steps = Steps(msgspec.convert({"step": fault[0], "when": fault[1], "what": fault[2]}, Fault))
    cell.work([Delivery(*delivery) for delivery in deliveries], waiting, steps, runs)
