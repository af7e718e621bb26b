"""Retention at work: a walk through the ledger now and then, by one process at a time."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

from oncebox.brokers.contract import Source
from oncebox.core import sweep
from oncebox.core.run import Perform, run_async
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings, database_steps
from oncebox.errors import ConfigError
from oncebox.policy import Policy
from oncebox.runtime.sessions import finished

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
        self.windows = windows_of(consumers)
        self.counts: Counter[str] = Counter()
        """What was deleted by this process, for metrics."""
        self.failures = 0

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
        queries, step = self.database.queries, STEPS[self.database.dialect]
        found: Counter[str] = Counter()
        try:
            walk = await run_async(sweep.look(queries), perform)
            while walk.place < walk.end:
                found += await run_async(sweep.count_step(queries, self.windows, walk, step), perform)
                walk.place += step
        finally:
            await finished(session.close())
        return found

    async def _walk(self, session: Session, rest_seconds: float, most_seconds: float) -> bool:
        steps = database_steps(session)
        perform: Perform = lambda step: steps[type(step)](step)  # noqa: E731
        queries = self.database.queries
        walk = await run_async(sweep.begin_walk(queries, self.holder), perform)
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
            await run_async(sweep.note_marks(queries, self.windows, walk), perform)
            if walk.place == 0 and walk.passed_seconds is not None and walk.passed_seconds < rest_seconds:
                return False
            done = await self._steps(walk, perform, most_seconds)
            if done:
                for consumer, seconds in self.windows.items():
                    await run_async(sweep.sweep_keys(queries, consumer, seconds), perform)
                await run_async(sweep.sweep_tallies(queries), perform)
            return done
        finally:
            await run_async(sweep.end_walk(queries, self.holder), perform)

    async def _steps(self, walk: sweep.Walk, perform: Perform, most_seconds: float) -> bool:
        began = time.monotonic()
        step = STEPS[self.database.dialect]
        queries = self.database.queries
        deleted: Counter[str] = Counter()
        while time.monotonic() - began < most_seconds:
            found = await run_async(sweep.sweep_step(queries, self.windows, walk, self.holder, step), perform)
            if found is None:
                log.info("retention: another process walks now")
                break
            deleted += found
            if walk.place == 0:
                break
        _tell(deleted)
        self.counts += deleted
        return walk.place == 0


def _tell(deleted: Mapping[str, int]) -> None:
    for consumer, count in sorted(deleted.items()):
        log.info("retention: consumer %s: %d ledger rows were past their window", consumer, count)
