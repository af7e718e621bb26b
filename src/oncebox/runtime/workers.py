"""Workers: what each does again and again with its connection. A thread for `def` handlers, a task
for `async def` ones; the turn they take is the same generator."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from oncebox import errors
from oncebox.core.batch import CHAINED_SECONDS, inline_batch
from oncebox.core.effects import work_effect
from oncebox.core.inline import stream
from oncebox.core.leased import work_long
from oncebox.core.ordered import deliver_in_order
from oncebox.core.place import follows
from oncebox.core.run import run, run_async
from oncebox.core.steps import Next, Op, Rollback, Settle
from oncebox.core.stored import work_batch
from oncebox.core.watermarked import deliver_in_partition
from oncebox.core.window import is_old
from oncebox.core.work import OVERDUE_SECONDS, Item, Work
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings
from oncebox.runtime.mailbox import Mailbox, TaskMailbox, ThreadMailbox
from oncebox.runtime.meter import Meter
from oncebox.runtime.performer import Performer
from oncebox.runtime.sessions import finished
from oncebox.runtime.turns import Turns

log = logging.getLogger("oncebox")

POLL_SECONDS = 0.5
"""How often an idle stored worker looks for itself; it is woken sooner by its own process."""
BACKOFF_MAX_SECONDS = 10.0
LOOK_SECONDS = 0.25
"""An inline worker whose line runs empty again and again looks at its queue no more often than this."""


def inline_turn(work: Work, mailbox: Mailbox) -> Op[bool]:
    """Deal with what is in the mailbox. False when there was nothing."""
    item = mailbox.take()
    if item is None:
        return False
    if item.lane is not None:
        yield from deliver_in_order(work, item)
        return True
    if item.place is not None:
        yield from _partition_turn(work, mailbox, item)
        return True
    if work.policy.batch == 1 or work.limit == 1 or not _batchable(work, item):
        yield from stream(work, item)
        work.succeeded()
        return True
    items = [item, *_batch(work, mailbox, work.limit - 1)]
    if len(items) == 1:
        yield from stream(work, item)
        return True
    until = work.monotonic() + CHAINED_SECONDS

    def goes_on() -> bool:
        # SQLite's transactions are opened without a round trip.
        if len(mailbox.items) < 2 or work.limit == 1 or work.marks_first or work.is_overdue():
            return False
        try:
            return _batchable(work, mailbox.items[0]) and work.monotonic() < until
        except IndexError:
            return False  # cleared meanwhile

    opened: str | None = None
    while items:
        left, opened = yield from inline_batch(work, items, opened, goes_on)
        for item in reversed(left):
            mailbox.active.remove(item)
            mailbox.items.appendleft(item)
        items = _batch(work, mailbox, work.limit) if opened is not None else []
    if opened is not None:
        yield Rollback()  # what was there was called back meanwhile
    return True


def _batch(work: Work, mailbox: Mailbox, limit: int) -> list[Item]:
    """Up to so many that can go together."""
    items: list[Item] = []
    line = mailbox.items
    try:
        while len(items) < limit:
            item = line.popleft()
            if not _batchable(work, item):
                line.appendleft(item)
                break
            items.append(item)
    except IndexError:
        pass  # that was all, or the line was cleared meanwhile: the worker is to stop
    mailbox.active += items
    return items


def _partition_turn(work: Work, mailbox: Mailbox, item: Item) -> Op[None]:
    """As many as one transaction may have, of one partition and without a gap."""
    items = [item]
    while len(items) < work.limit and _is_plain(items[-1]) and mailbox.items:
        if not (_is_plain(mailbox.items[0]) and follows(mailbox.items[0], items[-1])):
            break
        following = mailbox.take()
        assert following is not None
        items.append(following)
    for left in reversed((yield from deliver_in_partition(work, items))):
        mailbox.active.remove(left)
        mailbox.items.appendleft(left)
    if len(items) == 1:
        work.succeeded()


def _is_plain(item: Item) -> bool:
    return item.refusal is None and item.unrecorded is None and item.message.deliveries <= 1


def _batchable(work: Work, item: Item) -> bool:
    return _is_plain(item) and (work.window_seconds is None or not is_old(work, item))


def stored_turn(work: Work, turn: int) -> Op[bool]:
    """Take and handle what is due. Every tenth turn, and whenever nothing is due, suspects are looked at."""
    busy = bool((yield from work_batch(work)))
    if work.long_types:
        busy |= bool((yield from work_long(work)))
    if work.effect_types:
        busy |= bool((yield from work_effect(work)))
    if (not busy or turn % 10 == 0) and work.alone.enter(work):
        try:
            busy |= bool((yield from work_batch(work, suspect=True)))
        finally:
            work.alone.leave(work)
    return busy


class Crew:
    """What the workers of one consumer share."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        side: Any,
        settle: Callable[[Sequence[Item]], None],
        keep: Callable[[Item, bool], None],
        load: Callable[[str], bytes] | None,
        watchdog: Any,
        lost: Callable[[bool], None],
        release: Callable[[list[Item]], None],
        meter: Meter | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.database = database
        self.settings = settings
        self.side = side
        self.settle = settle
        self.keep = keep
        self.load = load
        self.watchdog = watchdog
        self.lost = lost
        """Told when a worker loses the database (True) and when it has it again (False)."""
        self.release = release
        """Gives items back to their broker, neither acked nor nacked."""
        self.meter = meter
        self.turns = turns or Turns()

    def performer(self, work: Work, session: Session, mailbox: Mailbox, is_async: bool) -> Performer:
        """A worker's hands on a fresh connection."""
        settle = self.settle

        single = work.policy.batch == 1

        def settle_those(step: Settle) -> None:
            items = step.items
            if items[0].delivery is not None:  # what comes from the queue was never in the mailbox
                mailbox.settled(items)
            settle(items)

        def next_one(step: Next) -> Item | None:
            # A group or a chain takes only what its kind of transaction can carry.
            return mailbox.take(loose=True) if single else None

        performer = Performer(
            work,
            session,
            self.side,
            is_async=is_async,
            keep=self.keep,
            load=self.load,
            watchdog=self.watchdog,
            meter=self.meter,
            task=asyncio.current_task() if is_async else None,
        )
        performer.hands[Next] = next_one
        performer.hands[Settle] = settle_those
        self.turns.in_turn(work, performer.hands, is_async)
        return performer


class ThreadWorker(threading.Thread):
    """A blocking worker."""

    def __init__(self, crew: Crew, work: Work) -> None:
        super().__init__(name=f"oncebox-{work.consumer}-{work.slot}", daemon=True)
        self.crew = crew
        self.work = work
        self.mailbox = ThreadMailbox()
        self._stopped = threading.Event()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Finish the turn, then end."""
        self._stopped.set()
        self.mailbox.ring()

    def run(self) -> None:
        """Take turns until stopped; no error ends a worker, the next turn starts on a fresh connection."""
        session: Session | None = None
        performer: Performer | None = None
        lost = 0
        turn = 0
        while not self.stopping:
            try:
                if session is not None and session.broken:
                    session.close()
                    session = None
                if session is None or performer is None:
                    session = self.crew.database.connect(self.crew.settings)
                    performer = self.crew.performer(self.work, session, self.mailbox, False)
                    if lost:
                        self.crew.side(self.work.withdraw())
                        self.crew.lost(False)
                        lost = 0
                turn += 1
                try:
                    busy = run(next_turn(self.work, self.mailbox, turn), performer)
                finally:
                    self.crew.turns.leave(self.work)
            except Exception as error:
                self.mailbox.put_back()
                if session is not None:
                    session.close()
                    session = None
                lost += 1
                report_loss(self.work, lost, error)
                self.crew.lost(True)
                self._stopped.wait(pause_seconds(lost))
                continue
            if not busy and not self.stopping:
                self.mailbox.wait(POLL_SECONDS)
        if session is not None:
            session.close()


class TaskWorker:
    """An awaiting worker; `run` is its task."""

    def __init__(self, crew: Crew, work: Work) -> None:
        self.crew = crew
        self.work = work
        self.mailbox = TaskMailbox()
        self.stopping = False

    def stop(self) -> None:
        """Finish the turn, then end."""
        self.stopping = True
        self.mailbox.ring()

    async def run(self) -> None:
        """Take turns until stopped. A cancellation rolls back and leaves everything un-acked."""
        session: Session | None = None
        performer: Performer | None = None
        lost = 0
        turn = 0
        try:
            while not self.stopping:
                try:
                    if session is not None and session.broken:
                        await finished(session.close())
                        session = None
                    if session is None or performer is None:
                        session = await self.crew.database.connect_async(self.crew.settings)
                        performer = self.crew.performer(self.work, session, self.mailbox, True)
                        if lost:
                            await self.crew.side(self.work.withdraw())
                            self.crew.lost(False)
                            lost = 0
                    turn += 1
                    try:
                        busy = await run_async(next_turn(self.work, self.mailbox, turn), performer)
                    finally:
                        self.crew.turns.leave(self.work)
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise
                    # The handler was cancelled, not this worker: its messages go back un-acked, and those that
                    # were in one batch with it are not to wait for it.
                    log.warning(
                        "consumer %s: a handler let a cancellation out; its messages go back",
                        self.work.consumer,
                    )
                    self.work.limit = 1
                    self.crew.release(self.mailbox.give_up())
                    await asyncio.sleep(pause_seconds(1))
                    continue
                except Exception as error:
                    self.mailbox.put_back()
                    if session is not None:
                        await finished(session.close())
                        session = None
                    lost += 1
                    report_loss(self.work, lost, error)
                    self.crew.lost(True)
                    await asyncio.sleep(pause_seconds(lost))
                    continue
                if not busy and not self.stopping:
                    await self.mailbox.wait(POLL_SECONDS)
        finally:
            if session is not None:
                await finished(session.close())


def next_turn(work: Work, mailbox: Mailbox, turn: int) -> Op[bool]:
    """The turn this consumer's mode asks for. An inline consumer's queue has what failed, what waits for
    its turn, and what was redriven; it is looked at when there is nothing else, and once a second."""
    if work.policy.mode == "stored":
        return (yield from stored_turn(work, turn))
    if work.looked is None:
        work.looked = work.monotonic()
    busy = yield from inline_turn(work, mailbox)
    idle_seconds = work.monotonic() - work.looked
    if work.is_overdue() or (not busy and idle_seconds >= LOOK_SECONDS):
        found = yield from stored_turn(work, turn)
        # While there is something, it is looked at after every turn.
        work.looked = work.monotonic() - (OVERDUE_SECONDS if found else 0.0)
        busy |= found
    return busy


def report_loss(work: Work, times: int, error: BaseException) -> None:
    """One line per loss, not a traceback storm; a traceback for what nobody foresaw."""
    level = logging.WARNING if times in (1, 5) or times % 30 == 0 else logging.DEBUG
    unforeseen = None if isinstance(error, errors.OnceboxError) else error
    log.log(
        level, "consumer %s: %s; paused, trying again (%d)", work.consumer, error, times, exc_info=unforeseen
    )


def pause_seconds(times: int) -> float:
    """Longer and longer, spread out."""
    longest: float = min(BACKOFF_MAX_SECONDS, 0.05 * 2.0 ** min(times, 12))
    return longest * random.uniform(0.5, 1.0)
