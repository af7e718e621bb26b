"""Retention at work: a walk through the ledger now and then, by one process at a time."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from oncebox.brokers.contract import Source
from oncebox.core import sweep
from oncebox.core.run import Perform, run_async
from oncebox.core.steps import Archive
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings, database_steps
from oncebox.errors import ArchiveError, ConfigError
from oncebox.policy import Policy
from oncebox.runtime.days import Days
from oncebox.runtime.sessions import finished
from oncebox.runtime.threads import in_thread

if TYPE_CHECKING:
    from oncebox.archive import Place

T = TypeVar("T")
log = logging.getLogger("oncebox")

RETENTION_SECONDS = 30 * 86_400.0
"""The window of a consumer that says nothing, where its source's horizon is known."""
LOOK_SECONDS = 60.0
"""How often a process looks whether there is a walk to do; spread out."""
REST_SECONDS = 600.0
"""Between the end of a walk and the next."""
CYCLE_SECONDS = 20.0
"""The longest a process walks at a time."""
STEPS = {"postgresql": 64, "sqlite": 2_000}
"""Pages, or rows, of one transaction."""
ARCHIVE_STEPS = {"postgresql": 256, "sqlite": 10_000}
"""The same where there is an archive: a part is a file, and few large ones are better to have than many."""
PAUSE = 4.0
"""After each step, for so many times as long as it took: purging is never more than a fifth of a backend's work."""
DAY_PAUSE = 19.0
"""The same for a partition as a whole, which keeps a backend busy for longer at a stretch: a twentieth of its work."""
ARCHIVE_PAUSE = 1.0
"""The same where there is an archive: most of a step is not the database's work then."""
DAY_SECONDS = 86_400.0


class Kept(Protocol):
    """What retention needs to know of a consumer."""

    name: str
    policy: Policy
    source: Source | None


def window_seconds(policy: Policy, source: Source | None) -> float | None:
    """How long a consumer's ledger is kept; None: for ever, because nobody knows how late a message may come."""
    if policy.retention_seconds is not None:
        return policy.retention_seconds
    # What lives in this process ends with it.
    known = source is None or source.in_process
    horizon = 0.0 if known or source is None else source.redelivery_horizon_seconds
    return None if horizon is None else max(RETENTION_SECONDS, horizon)


def check_window(consumer: Kept) -> None:
    """ConfigError when messages may come again after they are forgotten. A source that learns its horizon from
    its broker is asked again when it is open."""
    source, retention = consumer.source, consumer.policy.retention_seconds
    horizon = source.redelivery_horizon_seconds if source is not None else 0.0
    if retention is not None and horizon is not None and retention < horizon:
        raise ConfigError(
            f"consumer {consumer.name!r}: retention is {retention:g} s, but its source may deliver again "
            f"after {horizon:g} s; keep the ledger at least that long"
        )


def check_archive(consumer: Kept) -> None:
    """ConfigError when a consumer's archive can't be one, or what it needs is not installed."""
    url = consumer.policy.archive
    if url is None:
        return
    from oncebox.archive.places import open_place

    if find_spec("pyarrow") is None:
        raise ConfigError(
            f"consumer {consumer.name!r}: an archive needs pyarrow: pip install 'oncebox[archive]'"
        )
    try:
        open_place(url)
    except ConfigError as error:
        raise ConfigError(f"consumer {consumer.name!r}: {error}") from None


def warn_of_unbounded(consumer: Kept) -> None:
    """Nothing is forgotten where a message may come again at any time, and nobody has said how long is enough."""
    if consumer.source is not None and window_seconds(consumer.policy, consumer.source) is None:
        log.warning(
            "consumer %s: source %s may deliver a message again at any time, so its ledger is kept for ever; "
            "name a window: retention=timedelta(days=…)",
            consumer.name,
            consumer.source.name,
        )


def windows_of(consumers: Iterable[Kept]) -> dict[str, float]:
    """The windows of those that have one."""
    found = {each.name: window_seconds(each.policy, each.source) for each in consumers}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


class Sweeper:
    """Walks for as long as the app runs."""

    def __init__(self, database: Database, consumers: Iterable[Kept], holder: str) -> None:
        self.database = database
        self.holder = holder
        members = list(consumers)
        self.windows = windows_of(members)
        self.archives = {
            each.name: each.policy.archive for each in members if each.policy.archive is not None
        }
        """Where each consumer's rows go before they are deleted, of those that have an archive."""
        self.counts: Counter[str] = Counter()
        """What was deleted by this process, for metrics."""
        self.archived: Counter[str] = Counter()
        self.failures = 0
        self.archive_failures: Counter[str] = Counter()
        self.failed: dict[str, ArchiveError] = {}
        """Whose archive failed in the last stretch of a walk, and why."""
        self.over: list[str] = []
        """Partitions of days that are past: with `count`, those that there are, else those that are dropped."""
        self._places: dict[str, Place] = {}
        self.pause: float | None = None
        """Instead of the usual one."""

    async def run(self) -> None:
        """Look, walk, rest, until cancelled. A failure is told and tried again at the next look."""
        while self.windows:
            await asyncio.sleep(LOOK_SECONDS * random.uniform(0.5, 1.5))
            try:
                await self.cycle()
            except Exception as error:
                self.failures += 1
                log.warning("retention: %s; trying again later", error)

    async def cycle(self, *, rest_seconds: float = REST_SECONDS, most_seconds: float = CYCLE_SECONDS) -> bool:
        """One look, and a stretch of the walk. True when the walk came to its end."""
        session = await self.database.connect_async(Settings(lock_timeout_seconds=2.0))
        try:
            return await self._walk(session, rest_seconds, most_seconds)
        finally:
            await finished(session.close())

    async def count(self) -> Counter[str]:
        """What a walk would delete now; deletes nothing, and needs no lease."""
        session = await self.database.connect_async(Settings(lock_timeout_seconds=2.0))
        steps = database_steps(session)
        perform: Perform = lambda step: steps[type(step)](step)  # noqa: E731
        queries, step = self.database.queries, self._step
        found: Counter[str] = Counter()
        try:
            walk = await run_async(sweep.look(queries, self._windows()), perform)
            self.over = [leaf.name for leaf in walk.leaves if leaf.day is not None]
            while walk.place < walk.end:
                found += await run_async(sweep.count_step(queries, self._windows(), walk, step), perform)
        finally:
            await finished(session.close())
        return found

    async def paced(self, step: Awaitable[T], pause: float | None = None) -> T:
        """A step, and a pause in proportion to it: messages come first."""
        began = time.monotonic()
        done = await step
        usual = pause if pause is not None else ARCHIVE_PAUSE if self.archives else PAUSE
        await asyncio.sleep((usual if self.pause is None else self.pause) * (time.monotonic() - began))
        return done

    @property
    def _step(self) -> int:
        return (ARCHIVE_STEPS if self.archives else STEPS)[self.database.dialect]

    def _windows(self) -> dict[str, float]:
        """What is archived goes by whole days of UTC, so that a day is a few large parts and not many small ones:
        up to a day later than asked for, never earlier."""
        now = time.time() - sweep.SLACK_SECONDS
        return {
            name: seconds + ((now - seconds) % DAY_SECONDS if name in self.archives else 0.0)
            for name, seconds in self.windows.items()
        }

    def performer(self, session: Session) -> Perform:
        """What performs the steps of a walk."""
        steps: dict[type, Any] = {**database_steps(session), Archive: self._archive}
        return lambda step: steps[type(step)](step)

    async def _archive(self, step: Archive) -> None:
        from oncebox.archive import keep

        consumer = step.rows[0].consumer
        try:
            await in_thread(lambda: keep(self._place(consumer), step.rows))
        except ConfigError as error:
            raise ArchiveError(str(error)) from error
        self.archived[consumer] += len(step.rows)

    def _place(self, consumer: str) -> Place:
        from oncebox.archive import open_place

        url = self.archives[consumer]
        if url not in self._places:
            self._places[url] = open_place(url)
        return self._places[url]

    async def _walk(self, session: Session, rest_seconds: float, most_seconds: float) -> bool:
        perform = self.performer(session)
        queries = self.database.queries
        begin = sweep.begin_walk(queries, self.holder, self.archives.keys(), self._windows())
        walk = await run_async(begin, perform)
        if walk is None:
            return False
        if walk.behind_seconds:
            log.error(
                "retention: the database's clock has gone %.0f s ahead since the last walk; this one keeps %.0f s "
                "behind it",
                walk.behind_seconds + sweep.JUMP_SECONDS,
                walk.behind_seconds,
            )
        try:
            await run_async(sweep.note_marks(queries, self._windows(), walk), perform)
            if walk.place == 0 and walk.passed_seconds is not None and walk.passed_seconds < rest_seconds:
                return False
            done = await self._steps(walk, perform, most_seconds)
            if done:
                for consumer, seconds in self._windows().items():
                    await run_async(sweep.sweep_keys(queries, consumer, seconds), perform)
                await run_async(sweep.sweep_tallies(queries), perform)
            return done
        finally:
            self._tell_of_archives(walk)
            await run_async(sweep.end_walk(queries, self.holder), perform)

    def _tell_of_archives(self, walk: sweep.Walk) -> None:
        """What an archive did not take is kept, and tried again by the next walk."""
        self.failed = walk.failed
        for consumer, error in sorted(walk.failed.items()):
            self.failures += 1
            self.archive_failures[consumer] += 1
            log.error("retention: consumer %s: %s; what it did not take is not deleted", consumer, error)

    async def _steps(self, walk: sweep.Walk, perform: Perform, most_seconds: float) -> bool:
        began = time.monotonic()
        step, queries = self._step, self.database.queries
        days = Days(queries, walk, self.holder, perform)
        await days.make(self.windows)
        deleted: Counter[str] = Counter()
        done = False
        while not done and time.monotonic() - began < most_seconds:
            cleared, leaf = await self.paced(days.clear(self._windows()), DAY_PAUSE), walk.leaf
            deleted += cleared
            self.counts += cleared
            op = sweep.sweep_step(queries, self._windows(), walk, self.holder, step)
            found = await self.paced(run_async(op, perform))
            if found is None:
                log.info("retention: another process walks now")
                break
            deleted += found
            self.counts += found
            done = walk.place == 0
            await self.paced(days.retire(leaf), DAY_PAUSE)
        self.over += days.dropped
        _tell(deleted)
        return done


def _tell(deleted: Mapping[str, int]) -> None:
    for consumer, count in sorted(deleted.items()):
        log.info("retention: consumer %s: %d ledger rows were past their window", consumer, count)
