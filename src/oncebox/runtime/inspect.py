"""What an operator may ask, as data: how the consumers and workers do, and all that is kept of one message.

Reads only, by queries that stop at a cap; printing is left to whoever asked. States are derived as
the ledger means them: in queue, in dead, else as the ledger's own mark says, else done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from oncebox.codec import decode_result, unpack_headers, unpack_provenance
from oncebox.core.failure import STATE_DISCARDED, STATE_STALE, STATE_SUPPRESSED, STATE_UNFINISHED
from oncebox.core.outcomes import Reason, Status
from oncebox.core.queries import Queries, Query
from oncebox.core.run import run_async
from oncebox.core.steps import Call, Fetch, Op
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings, database_steps
from oncebox.errors import OnceboxError
from oncebox.message import Headers
from oncebox.runtime.sessions import finished

T = TypeVar("T")

COUNT_CAP = 100_000
"""Counting stops here; what shows this number means "at least"."""
SCOPES_MAX = 10_000
WINDOW_SECONDS = 300.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MARKED = {STATE_DISCARDED: "discarded", STATE_STALE: "stale", STATE_SUPPRESSED: "suppressed"}


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

    @property
    def processed(self) -> int:
        """Messages whose effects were committed in the window."""
        return self.outcomes.get(Status.PROCESSED, 0)

    @property
    def duplicates(self) -> int:
        """Deliveries in the window of messages that were known already, finished or still in the queue."""
        return self.outcomes.get(Status.DUPLICATE, 0) + self.outcomes.get(Status.WAITING, 0)


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
    window_seconds: float = WINDOW_SECONDS
    count_cap: int = COUNT_CAP


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it is kept, in the queue or among the dead."""

    payload: bytes
    headers: Headers
    content_type: str
    provenance: dict[str, Any]


class QueuePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message stands in the queue."""

    seq: int
    attempts: int
    deaths: int
    due: datetime
    body: Body


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One failed attempt; `died` when the process was lost with the message in hand."""

    n: int
    at: datetime
    died: bool
    error_type: str
    error: str
    traceback: str
    worker: str


class Grave(msgspec.Struct, frozen=True, kw_only=True):
    """A message among the dead. A `conflict` lies beside the message it clashes with."""

    reason: str
    type: str
    received: datetime
    died: datetime
    error_type: str
    error: str
    traceback: str
    attempts: int
    fingerprint: bytes
    body: Body


class Record(msgspec.Struct, kw_only=True):
    """All that is kept of one (consumer, source, message id)."""

    consumer: str
    source: str
    id: str
    state: str = "retrying"
    """Without a ledger row there were only failed inline attempts: the broker delivers it again."""
    reason: str = ""
    type: str = ""
    received: datetime | None = None
    finished: datetime | None = None
    fingerprint: bytes = b""
    has_result: bool = False
    result: Any = None
    queue: QueuePlace | None = None
    attempts: list[Attempt] = msgspec.field(default_factory=list)
    dead: list[Grave] = msgspec.field(default_factory=list)


def read_status(queries: Queries, consumers: Iterable[str] = ()) -> Op[StatusReport]:
    """How everybody does. `consumers` are listed even when nothing was ever heard of them."""
    queued = yield Fetch(Call(queries.status_queue, {"consumers": sorted(set(consumers)), "cap": COUNT_CAP}))
    dead: dict[str, dict[str, int]] = {}
    for name, reason, count in (yield Fetch(Call(queries.status_dead, {"cap": COUNT_CAP}))):
        dead.setdefault(name, {})[reason] = count
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
    )


def read_message(queries: Queries, message_id: str, consumer: str | None = None) -> Op[list[Record]]:
    """All records of an id, of one consumer or of every one; empty when nobody knows it."""
    scopes = yield Fetch(Call(queries.show_scopes, {"consumer": consumer, "cap": SCOPES_MAX}))
    if not scopes:
        return []
    rows = [{"consumer": row[0], "source": row[1]} for row in scopes]

    def ask(query: Query) -> Fetch:
        return Fetch(Call(query, {"rows": rows, "message_id": message_id}))

    records: dict[tuple[str, str], Record] = {}
    for name, source, *columns in (yield ask(queries.show_ledger)):
        records[name, source] = _ledger(Record(consumer=name, source=source, id=message_id), columns)
    for name, source, *columns in (yield ask(queries.show_dead)):
        record = records.setdefault((name, source), Record(consumer=name, source=source, id=message_id))
        record.dead.append(_grave(columns))
    for name, source, n, at, died, kind, error, traceback, worker in (yield ask(queries.show_attempts)):
        record = records.setdefault((name, source), Record(consumer=name, source=source, id=message_id))
        record.attempts.append(
            Attempt(
                n=n,
                at=instant(at),
                died=bool(died),
                error_type=kind,
                error=error,
                traceback=traceback,
                worker=worker,
            )
        )
    for record in records.values():
        _bury(record)
    return [records[key] for key in sorted(records)]


def _ledger(record: Record, columns: Sequence[Any]) -> Record:
    """The ledger's row and, where there is one, the queue's."""
    kind, received, done, mark, fingerprint, result, seq, attempts, deaths, due, *body, in_work = columns
    record.type, record.fingerprint = kind, bytes(fingerprint)
    record.received, record.finished = instant(received), instant(done) if done is not None else None
    if result is not None:
        record.has_result, record.result = True, decode_result(bytes(result))
    record.state = _MARKED.get(mark, "done")
    if mark == STATE_UNFINISHED:
        record.state, record.reason = "dead", Reason.UNFINISHED
    if seq is not None:
        record.queue = QueuePlace(
            seq=seq, attempts=attempts, deaths=deaths, due=instant(due), body=_body(body)
        )
        record.state = "working" if in_work else "retrying" if attempts + deaths else "waiting"
    return record


def _grave(columns: Sequence[Any]) -> Grave:
    kind, received, died, reason, error_type, error, traceback, attempts, fingerprint, *body = columns
    return Grave(
        reason=reason, type=kind, received=instant(received), died=instant(died), error_type=error_type, error=error,
        traceback=traceback, attempts=attempts, fingerprint=bytes(fingerprint), body=_body(body),
    )  # fmt: skip


def _body(columns: Sequence[Any]) -> Body:
    payload, headers, content_type, provenance = columns
    return Body(
        payload=bytes(payload),
        headers=unpack_headers(bytes(headers)),
        content_type=content_type,
        provenance=unpack_provenance(provenance),
    )


def _bury(record: Record) -> None:
    """A grave decides the state only when it is the message's own, not that of a conflicting payload."""
    for grave in record.dead:
        if grave.fingerprint == record.fingerprint and record.queue is None:
            record.state, record.reason = "dead", grave.reason


def instant(value: Any) -> datetime:
    """A column's time in UTC: a timestamp, or microseconds since 1970."""
    return value.astimezone(UTC) if isinstance(value, datetime) else _EPOCH + timedelta(microseconds=value)


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
