"""All that is kept of one message, as data.

Reads only. States are derived as the ledger means them: in queue, in dead, else as the ledger's own mark
says, else done.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from oncebox.codec import decode_result, unpack_headers, unpack_provenance
from oncebox.core.audit import Deed, Search, audited, instant
from oncebox.core.failure import STATE_DISCARDED, STATE_STALE, STATE_SUPPRESSED, STATE_UNFINISHED
from oncebox.core.outcomes import Reason
from oncebox.core.queries import Queries, Query
from oncebox.core.steps import Call, Fetch, Op
from oncebox.message import Headers

SCOPES_MAX = 10_000
DEEDS_MAX = 100
BEFORE_MAX = 100_000
_MARKED = {STATE_DISCARDED: "discarded", STATE_STALE: "stale", STATE_SUPPRESSED: "suppressed"}


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
    received: datetime
    lane: str | None = None
    version: int | None = None


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """Where an ordered message stands among those of its key."""

    key: str
    version: int | None
    last: int | None
    """The version that was handled last."""
    blocked_since: datetime | None
    blocked_by: str | None
    """The dead message that holds the key up."""
    gap_since: datetime | None
    turn: str | None
    """The message that runs next, or now."""
    before: int
    """How many of the key are in the queue before it."""


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
    lane: str | None = None
    version: int | None = None


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
    again: datetime | None = None
    """When it was last redriven: its place in line, and its window, are from then on."""
    finished: datetime | None = None
    fingerprint: bytes = b""
    has_result: bool = False
    result: Any = None
    queue: QueuePlace | None = None
    attempts: list[Attempt] = msgspec.field(default_factory=list)
    dead: list[Grave] = msgspec.field(default_factory=list)
    lane: Lane | None = None
    deeds: list[Deed] = msgspec.field(default_factory=list)


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
    for deed in (yield from audited(queries, Search(ids=(message_id,), consumer=consumer), DEEDS_MAX)):
        if (touched := records.get((deed.consumer, deed.source))) is not None:
            touched.deeds.insert(0, deed)
    for record in records.values():
        _bury(record)
        record.lane = yield from _lane(queries, record)
    return [records[key] for key in sorted(records)]


def _ledger(record: Record, columns: Sequence[Any]) -> Record:
    """The ledger's row and, where there is one, the queue's."""
    kind, received, done, mark, fingerprint, result, seq, attempts, deaths, due, *rest = columns
    *body, in_work, lane, version, _, queued, again = rest
    record.type, record.fingerprint = kind, bytes(fingerprint)
    record.received, record.finished = instant(received), instant(done) if done is not None else None
    record.again = instant(again) if again is not None else None
    if result is not None:
        record.has_result, record.result = True, decode_result(bytes(result))
    record.state = _MARKED.get(mark, "done")
    if mark == STATE_UNFINISHED:
        record.state, record.reason = "dead", Reason.UNFINISHED
    if seq is not None:
        record.queue = QueuePlace(
            seq=seq, attempts=attempts, deaths=deaths, due=instant(due), body=_body(body),
            received=instant(queued), lane=lane, version=version,
        )  # fmt: skip
        record.state = "working" if in_work else "retrying" if attempts + deaths else "waiting"
    return record


def _grave(columns: Sequence[Any]) -> Grave:
    kind, received, died, reason, error_type, error, traceback, attempts, fingerprint, *rest = columns
    *body, lane, version = rest
    return Grave(
        reason=reason, type=kind, received=instant(received), died=instant(died), error_type=error_type, error=error,
        traceback=traceback, attempts=attempts, fingerprint=bytes(fingerprint), body=_body(body), lane=lane,
        version=version,
    )  # fmt: skip


def _lane(queries: Queries, record: Record) -> Op[Lane | None]:
    """Of a message that is in the queue or dead, and ordered."""
    seq, places = 0, [(grave.lane, grave.version) for grave in record.dead if grave.lane is not None]
    if record.queue is not None and record.queue.lane is not None:
        seq, places = record.queue.seq, [(record.queue.lane, record.queue.version)]
    if not places or places[0][0] is None:
        return None
    key, version = places[0]
    params = {"consumer": record.consumer, "lane": key, "version": version, "seq": seq, "cap": BEFORE_MAX}
    rows = yield Fetch(Call(queries.show_lane, params))
    if not rows:
        return None
    last, blocked, _, blocked_by, gap, turn, before = rows[0]
    return Lane(
        key=key, version=version, last=last, blocked_since=None if blocked is None else instant(blocked),
        blocked_by=blocked_by, gap_since=None if gap is None else instant(gap), turn=turn, before=int(before),
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
