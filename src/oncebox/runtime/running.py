"""An app at work: connects sources to workers, keeps the process alive in the database's eyes, and
stops in order: no more receiving, what is in hand finishes, the rest is released un-acked."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from oncebox.brokers.contract import Source
from oncebox.core.keys import close_gaps
from oncebox.core.outcomes import DONE
from oncebox.core.reap import reap_lapsed
from oncebox.core.run import run_async
from oncebox.core.steps import Call
from oncebox.core.stored import bury_unknown
from oncebox.core.work import Item, Work
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings
from oncebox.errors import BrokerUnavailable
from oncebox.policy import Policy
from oncebox.runtime.feed import Feed, hand_out, report
from oncebox.runtime.keeper import SIGN_OFF_SECONDS, Keeper, new_worker_id
from oncebox.runtime.lasting import lasting
from oncebox.runtime.members import Member, concurrency, connection_settings, prefetch
from oncebox.runtime.meter import Meter
from oncebox.runtime.performer import Performer
from oncebox.runtime.receiver import Receiver
from oncebox.runtime.relay import Bell, Relay, Routes, listen
from oncebox.runtime.sessions import AsyncSideChannel, SideChannel, finished
from oncebox.runtime.sweeper import Sweeper, check_window, warn_of_unbounded
from oncebox.runtime.tallies import Tallies
from oncebox.runtime.turns import Turns
from oncebox.runtime.watchdog import Watchdog
from oncebox.runtime.workers import Crew, TaskWorker, ThreadWorker, pause_seconds, report_loss

log = logging.getLogger("oncebox")

PARTS = ("sources", "workers", "relay")
DRAIN_LOOK_SECONDS = 0.02
ANSWER_SECONDS = 10.0
"""How long `stop` waits for the broker to take the last answers."""


class Running:
    """Everything that runs for an app in this process."""

    def __init__(
        self,
        database: Database,
        members: Iterable[Member],
        *,
        only: tuple[str, ...] = PARTS,
        beat_seconds: float = 2.0,
        lapse_seconds: float = 10.0,
        drain_seconds: float = 30.0,
        load: Any = None,
        worker: str | None = None,
        sinks: Routes = (),
        keep_published_seconds: float = 0.0,
        meter: Meter | None = None,
    ) -> None:
        self.database = database
        self.members = list(members)
        self.only = only
        self.beat_seconds = beat_seconds
        self.lapse_seconds = lapse_seconds
        self.drain_seconds = drain_seconds
        self.load = load
        self.worker = worker or new_worker_id()
        """This incarnation's name; a parent that reaps its children chooses it."""
        self.sinks = sinks
        self.keep_published_seconds = keep_published_seconds
        self.tallies = Tallies(meter)
        self._slots = iter(range(1, 1_000_000))
        self._workers: list[ThreadWorker | TaskWorker] = []
        self._worker_tasks: list[asyncio.Task[None]] = []
        self._source_tasks: list[asyncio.Task[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._feeds: list[Feed] = []
        self._stack = AsyncExitStack()
        self._watchdog = Watchdog()
        self._hurry = asyncio.Event()
        self.is_open = False
        """Whether everything has been started, and nothing is being stopped."""

    @property
    def sources_open(self) -> bool:
        """Whether every source that this process receives from has found its broker."""
        return all(feed.is_open for feed in self._feeds)

    async def start(self) -> None:
        """Open sources and start workers. Raises what a source's topology check or the database says."""
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        self.is_open = True

    async def _start(self) -> None:
        side_settings = Settings(side=True)
        self.side = AsyncSideChannel(self.database, side_settings)
        self._stack.push_async_callback(self.side.close)
        self.thread_side = SideChannel(self.database, side_settings)
        self._stack.callback(self.thread_side.close)
        self.keeper = Keeper(self.database, side_settings, self.worker, self.beat_seconds, self.lapse_seconds)
        self.keeper.start()
        await asyncio.get_running_loop().run_in_executor(None, self.keeper.first_beat.wait, 10)
        self._stack.push_async_callback(self._stop_keeper)
        self.outgoing = OutgoingBell(self)
        self._last("the bell", self.outgoing.run)
        if self.sinks and "relay" in self.only:
            await self._start_relay()
        for member in self.members:
            await self._start_member(member)
        self._last("maintenance", self._maintain)
        self.sweeper = Sweeper(self.database, self.members, self.worker)
        if "sources" in self.only or "workers" in self.only:
            self._last("retention", self.sweeper.run)

    def _last(self, what: str, run: Callable[[], Awaitable[None]]) -> None:
        """Have it run until everything is stopped."""
        self._tasks.append(asyncio.create_task(lasting(what, run), name=what))

    async def _start_relay(self) -> None:
        bell = self.outgoing.relay_bell = Bell()
        relay = Relay(self.database, self.sinks, self.worker, bell, keep_seconds=self.keep_published_seconds)
        self._stack.push_async_callback(relay.close)
        await relay.open()
        self._last("the relay", relay.run)
        if self.database.dialect == "postgresql" and not self.database.pooled:
            self._last("the relay's ear", partial(listen, self.database, bell))

    async def _stop_keeper(self) -> None:
        self.keeper.stop()
        await asyncio.get_running_loop().run_in_executor(None, self.keeper.join, 2 * SIGN_OFF_SECONDS)

    async def _start_member(self, member: Member) -> None:
        stored = member.policy.mode == "stored"
        source = member.source if "sources" in self.only else None
        # An inline message is handled where it is received: its workers belong to its source.
        part = "workers" if stored else "sources"
        with_workers = part in self.only and bool(member.registry.all())
        feed: Feed | None = None
        if source is not None:
            is_open = await self._opened(source)
            self._stack.push_async_callback(source.close)
            if is_open:
                check_window(member)
                warn_of_unbounded(member)
            count = concurrency(member, self.database)
            feed = Feed(source, member.intake, prefetch(member.policy, count), count)
            feed.is_open = is_open
            feed.opened = lambda: check_window(member)
            self._feeds.append(feed)
        workers: list[ThreadWorker | TaskWorker] = []
        if with_workers and (stored or feed is not None):
            turns = Turns()
            workers = [self._worker(member, feed, turns) for _ in range(concurrency(member, self.database))]
        if feed is not None:
            self._start_feed(member, feed, workers)

    async def _opened(self, source: Source) -> bool:
        """What is wrong with a source ends the start; a broker that is away is waited for, like any other loss."""
        try:
            await source.open()
        except BrokerUnavailable as error:
            log.warning("source %s: %s; starting without it, trying again", source.name, error)
            return False
        return True

    def _worker(self, member: Member, feed: Feed | None, turns: Turns) -> ThreadWorker | TaskWorker:
        slot = next(self._slots)
        is_async = member.registry.is_async
        answered = feed is not None and (member.policy.mode == "inline" or feed.copies)
        settled = self._then_ring(feed.settle if answered and feed is not None else self._count(member))

        def lost(gone: bool) -> None:
            if feed is not None:
                feed.lost(slot, gone)

        crew = Crew(
            self.database,
            connection_settings(member.policy),
            self.side if is_async else self.thread_side,
            settled,
            # Twice: a reconcile hook has its time before the call has its own.
            self.keeper.keeper_of(member.policy.lease_seconds, 2 * member.policy.timeout_seconds),
            self.load,
            self._watchdog,
            lost,
            feed.release if feed is not None else lambda items: None,
            self.tallies.meter,
            turns,
        )
        work = member.work(self.worker, slot)
        turns.join(work)
        worker: ThreadWorker | TaskWorker
        if is_async:
            worker = TaskWorker(crew, work)
            self._worker_tasks.append(asyncio.create_task(worker.run()))
        else:
            worker = ThreadWorker(crew, work)
            worker.start()
        self._workers.append(worker)
        return worker

    def _then_ring(self, settle: Callable[[Sequence[Item]], None]) -> Callable[[Sequence[Item]], None]:
        def settled(items: Sequence[Item]) -> None:
            settle(items)
            for item in items:
                if item.publications or item.sendings:
                    self.outgoing.ring()
                    return

        return settled

    def wake_workers(self) -> None:
        """On the loop: stored workers look at their queue now."""
        for worker in self._workers:
            worker.mailbox.ring()

    def _count(self, member: Member) -> Any:
        def count(items: Sequence[Item]) -> None:
            if done := [item.message for item in items if item.outcome is DONE]:
                self.tallies.add_all(member.name, done, DONE)
            if len(done) == len(items):
                return
            for item in items:
                outcome = item.outcome
                assert outcome is not None
                if outcome is not DONE:
                    self.tallies.add(member.name, item.message, outcome)
                    report(member.name, item, outcome)

        return count

    def _start_feed(self, member: Member, feed: Feed, workers: list[ThreadWorker | TaskWorker]) -> None:
        if member.policy.mode == "stored":
            work = member.work(self.worker, 0)
            receiver = Receiver(member, work, self.database, self.side, feed, workers)
            self._last(f"storing for {member.name}", receiver.run)
            boxes = [receiver.mailbox]
        else:
            boxes = [worker.mailbox for worker in workers]  # type: ignore[misc]
        shared: deque[Item] | None = None
        if member.policy.batch == 1:
            shared = deque()
            for box in boxes:
                box.shared = shared
        receive = partial(feed.receive, partial(hand_out, boxes, shared=shared))
        receiving = lasting(f"receiving from {feed.source.name}", receive)
        self._source_tasks.append(asyncio.create_task(receiving, name=f"receiving from {feed.source.name}"))
        self._last(f"answering {feed.source.name}", partial(feed.answer, self.tallies))
        self._last(f"extending at {feed.source.name}", feed.extend)

    async def _maintain(self) -> None:
        """Once a second: tallies; now and then: the dead among the workers, types nobody handles."""
        session: Session | None = None
        work = Work("-", self.database.queries, Policy(), worker=self.worker)
        turn = lost = 0
        try:
            while True:
                await asyncio.sleep(1.0 if not lost else pause_seconds(lost))
                turn += 1
                try:
                    if session is None:
                        session = await self.database.connect_async(Settings(lock_timeout_seconds=2.0))
                    performer = Performer(work, session, self.side, is_async=True)
                    await self.flush_tallies()
                    if self.keeper.may_judge():
                        await run_async(reap_lapsed(work, self.lapse_seconds), performer)
                    if turn % 30 == 0:
                        await self._bury_unknown(performer)
                    await self._close_gaps(performer)
                    lost = 0
                except Exception as error:
                    lost += 1
                    report_loss(work, lost, error)
                    if session is not None:
                        await finished(session.close())
                        session = None
        finally:
            if session is not None:
                await finished(session.close())

    async def _bury_unknown(self, performer: Performer) -> None:
        for member in self.members:
            if (
                member.policy.mode == "stored"
                and member.registry.all()
                and member.registry.find("\0") is None
            ):
                work = member.work(self.worker, 0)
                await run_async(bury_unknown(work, member.registry.names()), performer)

    async def _close_gaps(self, performer: Performer) -> None:
        """Keys that have waited too long for a missing version: what their policy says, and a word about it."""
        for member in self.members:
            if member.policy.order_by != "sequence":
                continue
            for passed in await run_async(close_gaps(member.work(self.worker, 0)), performer):
                log.error(
                    "consumer %s: key %s waited %g s for a version that is missing; %s%s",
                    member.name,
                    passed.key,
                    member.policy.gap_seconds,
                    passed.done,
                    f" {passed.messages} messages" if passed.messages else "",
                )
                self.wake_workers()

    async def flush_tallies(self) -> None:
        """Write what was counted; a crash loses at most a second of counts, never a message."""
        rows = self.tallies.drain()
        if rows:
            await self.side(Call(self.database.queries.tally, {"rows": rows}))

    async def stop(self) -> None:
        """Drain: what is in hand finishes, what is not started goes back to its broker un-acked."""
        self.is_open = False
        await cancel(self._source_tasks)
        for worker in self._workers:
            # What is not started stays un-acked; `give_back` releases it.
            worker.mailbox.items.clear()
            worker.mailbox.shared.clear()
            worker.stop()
        await self._drained()
        await cancel(self._worker_tasks)
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await asyncio.gather(*(feed.answer_settled(self.tallies) for feed in self._feeds))
        await cancel(self._tasks)
        for feed in self._feeds:
            await feed.answer_settled(self.tallies)
            await feed.give_back()
        try:
            await self.flush_tallies()
        except Exception as error:
            log.debug("last tallies were not written: %s", error)
        await self._stack.aclose()

    def hurry(self) -> None:
        """Have `stop` wait for nothing more that is in hand: it rolls back, un-acked and uncounted.

        A handler that blocks its thread can't be interrupted; it rolls back when the process ends.
        """
        self._hurry.set()

    async def _drained(self) -> None:
        """Wait until no worker has anything in hand, `drain_seconds` at most."""
        threads = [worker for worker in self._workers if isinstance(worker, ThreadWorker)]
        deadline = asyncio.get_running_loop().time() + self.drain_seconds
        while any(thread.is_alive() for thread in threads) or not all(
            task.done() for task in self._worker_tasks
        ):
            if self._hurry.is_set() or asyncio.get_running_loop().time() > deadline:
                log.warning("stopped with messages in hand; they roll back and are delivered again")
                return
            await asyncio.sleep(DRAIN_LOOK_SECONDS)


class OutgoingBell:
    """After commits that left something to publish or for other consumers: wakes those who wait for it,
    here and, by NOTIFY, elsewhere. As often as it is rung, it tells the database once in a while."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.relay_bell: Bell | None = None
        self._bell = Bell()

    def ring(self) -> None:
        """From any thread."""
        self._bell.ring()

    async def run(self) -> None:
        """Pass it on, until cancelled."""
        while True:
            if not await self._bell.wait(60):
                continue
            if self.relay_bell is not None:
                self.relay_bell.ring()
            self.running.wake_workers()
            if self.running.sinks and self.running.database.dialect == "postgresql":
                try:
                    await self.running.side(Call(self.running.database.queries.ring, {}))
                except Exception as error:
                    log.debug("nobody was notified: %s", error)


CANCEL_SECONDS = 5.0


async def cancel(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel and wait; nothing is raised. Asked again when it goes on: a cancellation that meets a failing call of
    the database may be taken for the failure."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
