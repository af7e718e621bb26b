"""What an operator may ask, as data: how the consumers and workers do.

Reads only, by queries that stop at a cap; printing is left to whoever asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

import msgspec

from oncebox.core.outcomes import OBSERVED, Status
from oncebox.core.queries import Queries
from oncebox.core.run import run_async
from oncebox.core.steps import Call, Fetch, Op
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings, database_steps
from oncebox.errors import OnceboxError
from oncebox.runtime.places import PartitionedLedger, WatermarkedConsumer, read_partitioned, read_watermarked
from oncebox.runtime.sessions import finished

T = TypeVar("T")

Handled = Mapping[str, Collection[str] | None]
"""By consumer, the types its handlers name; None: one of them takes everything."""

COUNT_CAP = 100_000
"""Counting stops here; what shows this number means "at least"."""
WINDOW_SECONDS = 300.0


class ConsumerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer as of now; the outcomes are of the last five minutes."""

    consumer: str
    waiting: int
    retrying: int
    working: int
    oldest_seconds: float | None
    """How long ago the oldest message that is still in the queue was received."""
    dead: dict[str, int] = {}
    """Kept for a person, by reason."""
    outcomes: dict[str, int] = {}
    processed_per_second: float = 0.0
    blocked_keys: int = 0
    """Ordered keys whose head is dead."""
    gapped_keys: int = 0
    """Ordered keys that wait for a version that is missing."""
    unfinished: int = 0
    """Claims of the guard's that were committed although their block had failed."""
    unhandled: dict[str, int] = {}
    """What waits and no handler of the app takes, by type; empty where no app is named."""
    known: int | None = None
    """Messages on record, the guard's too; None where nobody asked."""

    @property
    def processed(self) -> int:
        """Messages whose effects were committed in the window."""
        return self.outcomes.get(Status.PROCESSED, 0)

    @property
    def duplicates(self) -> int:
        """Deliveries in the window of messages that were known already, finished or still in the queue."""
        return self.outcomes.get(Status.DUPLICATE, 0) + self.outcomes.get(Status.WAITING, 0)

    @property
    def failed(self) -> int:
        """Attempts in the window that failed, for now or for good."""
        return self.outcomes.get(Status.RETRY, 0) + self.outcomes.get(Status.DEAD, 0)

    @property
    def observed(self) -> int:
        """Deliveries in the window that ran although they were known, because the consumer only observes."""
        return sum(self.outcomes.get(status, 0) for status in OBSERVED.values())


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process that has said it is alive."""

    id: str
    host: str
    pid: int
    up_seconds: float
    heartbeat_seconds: float
    """How long ago it was last heard of, by the database's clock."""
    in_hand: int


class OutboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is on its way out."""

    waiting: int = 0
    parked: int = 0
    """Refused too often, or by no sink's pattern: kept for a person."""
    oldest_seconds: float | None = None


class Replays(msgspec.Struct, frozen=True, kw_only=True):
    """What the replays of a consumer have come to, all together."""

    handled: int = 0
    suppressed: int = 0
    """Publications, sends and calls to the outside that they left out."""


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `status` shows."""

    consumers: list[ConsumerStatus]
    workers: list[WorkerStatus]
    outbox: OutboxStatus = OutboxStatus()
    effects: dict[str, int] = {}
    """Calls to the outside whose end is not known: `parked` for a person, or `started`."""
    replays: dict[str, Replays] = {}
    """By consumer."""
    partitioned: list[PartitionedLedger] = []
    """Ledgers in partitions by day; empty where nobody asked."""
    watermarked: list[WatermarkedConsumer] = []
    """Duplicates by watermark; empty where nobody asked."""
    window_seconds: float = WINDOW_SECONDS
    count_cap: int = COUNT_CAP


def read_status(
    queries: Queries, consumers: Iterable[str] = (), *, handled: Handled | None = None, known: bool = False
) -> Op[StatusReport]:
    """How everybody does. `consumers` are listed even when nothing was ever heard of them; `handled` tells
    which types nobody takes; with `known` the ledger's rows are counted, and it is told who has partitions and who
    has watermarks."""
    queued = yield Fetch(Call(queries.status_queue, {"consumers": sorted(set(consumers)), "cap": COUNT_CAP}))
    dead: dict[str, dict[str, int]] = {}
    for name, reason, count in (yield Fetch(Call(queries.status_dead, {"cap": COUNT_CAP}))):
        dead.setdefault(name, {})[reason] = count
    unfinished = {
        name: int(count) for name, count in (yield Fetch(Call(queries.status_unfinished, {"cap": COUNT_CAP})))
    }
    outcomes: dict[str, dict[str, int]] = {}
    tallies = yield Fetch(Call(queries.status_tally, {"seconds": WINDOW_SECONDS}))
    for name, outcome, count, _ in tallies:
        outcomes.setdefault(name, {})[outcome] = int(count)
    seconds = max(tallies[0][3], 1.0) if tallies else WINDOW_SECONDS
    workers = yield Fetch(Call(queries.status_workers, {}))
    waiting_out, parked, oldest_out = (yield Fetch(Call(queries.outbox_status, {"cap": COUNT_CAP})))[0]
    effects = yield Fetch(Call(queries.effects_count, {"cap": COUNT_CAP}))
    replays = yield Fetch(Call(queries.replay_counts, {}))
    keys = {name: (blocked, gapped) for name, blocked, gapped in (yield Fetch(Call(queries.keys_count, {})))}
    unhandled = yield from _unhandled(queries, handled or {}, {row[0] for row in queued if row[1] or row[2]})
    names = [row[0] for row in queued] if known else []
    rows = (yield Fetch(Call(queries.status_known, {"consumers": names, "cap": COUNT_CAP}))) if names else ()
    partitioned = (yield from read_partitioned(queries)) if known else []
    watermarked = (yield from read_watermarked(queries)) if known else []
    on_record: dict[str, int] = {name: int(count) for name, count in rows}
    return StatusReport(
        consumers=[
            ConsumerStatus(
                consumer=name,
                waiting=waiting,
                retrying=retrying,
                working=working,
                oldest_seconds=oldest,
                dead=dead.get(name, {}),
                outcomes=outcomes.get(name, {}),
                processed_per_second=outcomes.get(name, {}).get(Status.PROCESSED, 0) / seconds,
                blocked_keys=keys.get(name, (0, 0))[0],
                gapped_keys=keys.get(name, (0, 0))[1],
                unfinished=unfinished.get(name, 0),
                unhandled=unhandled.get(name, {}),
                known=on_record.get(name),
            )
            for name, waiting, retrying, working, oldest in queued
        ],
        workers=[
            WorkerStatus(
                id=worker, host=host, pid=pid, up_seconds=up, heartbeat_seconds=max(beat, 0.0), in_hand=held
            )
            for worker, host, pid, up, beat, held in workers
        ],
        outbox=OutboxStatus(waiting=waiting_out, parked=parked, oldest_seconds=oldest_out),
        effects=dict(sorted((state, count) for state, count in effects)),
        replays={name: Replays(handled=int(n), suppressed=int(left)) for name, n, left in sorted(replays)},
        partitioned=partitioned,
        watermarked=watermarked,
    )


def _unhandled(queries: Queries, handled: Handled, waiting: set[str]) -> Op[dict[str, dict[str, int]]]:
    """By consumer, what waits of types that no handler takes."""
    found: dict[str, dict[str, int]] = {}
    for name, types in handled.items():
        if types is not None and name in waiting:
            rows = yield Fetch(Call(queries.status_types, {"consumer": name, "cap": COUNT_CAP}))
            if strange := {str(kind): int(count) for kind, count in rows if kind not in types}:
                found[name] = strange
    return found


class Reader:
    """Asks a database, on a connection that is opened when it is first needed and again after a loss."""

    def __init__(self, database: Database, settings: Settings | None = None) -> None:
        self.database = database
        self.settings = settings or Settings()
        self._session: Session | None = None

    async def ask(self, op: Op[T]) -> T:
        """The answer, or the error the database gave; the next question then starts afresh."""
        if self._session is None:
            self._session = await self.database.connect_async(self.settings)
        steps = database_steps(self._session)
        try:
            return await run_async(op, lambda step: steps[type(step)](step))
        except OnceboxError:
            await self.close()
            raise

    async def close(self) -> None:
        """Let the connection go."""
        session, self._session = self._session, None
        if session is not None:
            await finished(session.close())
