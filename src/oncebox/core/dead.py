"""What a person decides about dead messages: run them again, let them go, or choose which payload stands.

Everything happens in batches of their own transactions, each with its audit rows: whatever is killed in
between, what was decided is on record and the rest is as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from oncebox import errors
from oncebox.codec import unpack_headers, unpack_provenance
from oncebox.core.audit import Act, Touched, audit
from oncebox.core.lanes import advance, lock
from oncebox.core.outcomes import Reason
from oncebox.core.queries import Queries
from oncebox.core.steps import Begin, Call, Commit, Execute, Fetch, Op, Rollback
from oncebox.core.storing import row_to_store
from oncebox.core.work import new_token
from oncebox.identity import derived, fingerprint
from oncebox.message import Message, MessageKey

LIST_MAX = 1000
BATCH = 100
"""Messages that one transaction of a bulk change holds."""
COUNT_MAX = 1_000_000
REPLACES = "oncebox-replaces"
"""The header of a message that stands in for a dead one: the id of that one."""

Decision = Literal["redrive", "discard"]


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is not tried again by itself."""

    consumer: str
    source: str
    id: str
    type: str
    key: str | None
    reason: str
    error_type: str
    error: str
    attempts: int
    age_seconds: float
    dead_seconds: float
    is_conflict: bool
    """It lies beside another message of the same id, whose payload or type is not the same."""
    fingerprint: bytes
    is_kept: bool = True
    """False: its payload was not kept, by policy; it can't run again."""
    lane: str | None = None
    version: int | None = None
    is_claim: bool = False
    """Nothing is kept but its id: a claim of the guard's that was committed unfinished."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which of them are meant. What is None does not matter."""

    ids: tuple[str, ...] = ()
    consumer: str | None = None
    source: str | None = None
    type: str | None = None
    reason: str | None = None
    error_type: str | None = None
    """The error's class, with or without its module."""
    key: str | None = None
    older_seconds: float | None = None
    newer_seconds: float | None = None

    def params(self, limit: int, *, own: bool = False, whole: bool = False) -> dict[str, Any]:
        """As the queries want it. `own` leaves conflicts out, `whole` what has no payload."""
        words = {**msgspec.structs.asdict(self), "ids": list(self.ids) or None}
        return {**words, "limit": limit, "own": own, "whole": whole}


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How many of one kind there are."""

    consumer: str
    reason: str
    type: str
    count: int


def dead_letters(
    queries: Queries,
    choice: Choice,
    limit: int = LIST_MAX,
    *,
    own: bool = False,
    whole: bool = False,
    lock: bool = False,
) -> Op[list[DeadLetter]]:
    """The chosen ones, in the order in which they would run again; `own` leaves conflicts out, `whole` what
    has no payload, `lock` what somebody else decides about now."""
    query = queries.dead_choose if lock else queries.dead_list
    rows = yield Fetch(Call(query, choice.params(limit, own=own, whole=whole)))
    return [
        DeadLetter(
            consumer=row[0], source=row[1], id=row[2], fingerprint=bytes(row[3]), type=row[4], key=row[5],
            reason=row[6], error_type=row[7], error=row[8], attempts=row[9], age_seconds=float(row[10]),
            dead_seconds=float(row[11]), lane=row[12], version=row[13], is_conflict=not row[14],
            is_kept=bool(row[15]),
        )
        for row in rows
    ]  # fmt: skip


def count_dead(queries: Queries, choice: Choice, decision: Decision = "redrive") -> Op[list[Count]]:
    """How many a bulk change would touch, by consumer, reason and type; conflicts are left out of it."""
    params = choice.params(COUNT_MAX, own=True, whole=decision == "redrive")
    rows = yield Fetch(Call(queries.dead_count, params))
    return [Count(consumer=row[0], reason=row[1], type=row[2], count=int(row[3])) for row in rows]


def decide(queries: Queries, decision: Decision, choice: Choice, act: Act) -> Op[list[DeadLetter]]:
    """Redrive or discard up to `BATCH` of the chosen ones, in one transaction.

    Redriven messages keep id, headers and place in line, and have a fresh budget. Conflicts are left
    out: their id has another message's history (`resolve`); and so is, of what would run again, that of which
    no payload was kept. Returns what was changed; none when nothing is left.
    """
    token = new_token()
    try:
        yield Begin(token)
        whole = decision == "redrive"
        found = yield from dead_letters(queries, choice, BATCH, own=True, whole=whole, lock=True)
        if not found:
            yield Rollback()
            return []
        yield from _lock(queries, found)
        gone = _let_go(queries, found, act) if decision == "discard" else ()
        yield Execute((*_changes(queries, decision, found), *gone))
        result = "waiting" if decision == "redrive" else "discarded"
        after = _unstuck(queries, found, redriven=decision == "redrive")
        yield Commit(token, (*after, audit(queries, act, [_touched(each, result) for each in found])))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    return found


def _changes(queries: Queries, decision: Decision, found: Sequence[DeadLetter]) -> tuple[Call, ...]:
    rows = [_key(each) for each in found]
    drop = Call(queries.dead_drop, {"rows": rows})
    if decision == "discard":
        return (Call(queries.dead_discard, {"rows": rows}), drop)
    return (Call(queries.dead_reopen, {"rows": rows}), Call(queries.dead_requeue, {"rows": rows}), drop)


def _let_go(queries: Queries, found: Sequence[DeadLetter], act: Act) -> tuple[Call, ...]:
    """A call to the outside that was unknown waits for nobody once its message is let go."""
    return tuple(
        Call(queries.effect_resolve, {**_key(each), "state": "discarded", "note": act.reason})
        for each in found
        if each.reason == Reason.UNKNOWN_EFFECT
    )


def _key(each: DeadLetter) -> dict[str, Any]:
    return {
        "consumer": each.consumer,
        "source": each.source,
        "message_id": each.id,
        "fingerprint": each.fingerprint,
    }


def _touched(each: DeadLetter, result: str) -> Touched:
    return Touched(consumer=each.consumer, source=each.source, id=each.id, result=result)


def _lock(queries: Queries, found: Sequence[DeadLetter]) -> Op[None]:
    """The lanes of these, before anything else is touched: consumer by consumer, sorted."""
    for consumer, keys in _lanes(found):
        yield Fetch(lock(queries, consumer, keys))


def _unstuck(queries: Queries, found: Sequence[DeadLetter], *, redriven: bool) -> tuple[Call, ...]:
    calls: list[Call] = []
    for each in found:
        if each.lane is not None:
            params = {
                "consumer": each.consumer,
                "source": each.source,
                "message_id": each.id,
                "key": each.lane,
            }
            calls.append(
                Call(queries.key_redriven, {**params, "version": each.version if redriven else None})
            )
    for consumer, keys in _lanes(found):
        calls += advance(queries, consumer, keys)
    return tuple(calls)


def _lanes(found: Sequence[DeadLetter]) -> list[tuple[str, list[str]]]:
    consumers = sorted({each.consumer for each in found if each.lane is not None})
    return [
        (consumer, sorted({e.lane for e in found if e.lane is not None and e.consumer == consumer}))
        for consumer in consumers
    ]


def replace(queries: Queries, dead: DeadLetter, act: Act, *, payload: bytes | None = None) -> Op[str]:
    """Put a message in line that stands in for a dead one: its payload, or another; returns the new id.

    An edited payload, and the second of two that clash, is another message: it has an id of its own,
    made from the old one and what it says, and names the old one in a header. The old one is let go.
    """
    token = new_token()
    key = _key(dead)
    try:
        yield Begin(token)
        yield from _lock(queries, [dead])
        rows = yield Fetch(Call(queries.dead_row, key))
        if not rows:
            raise errors.UsageError(f"id {dead.id!r}: somebody else has decided about it meanwhile")
        if payload is None and not dead.is_kept:
            raise errors.UsageError(
                f"id {dead.id!r}: no payload was kept of it; dead edit --payload gives it one"
            )
        kind, ordering, body, headers, content_type, provenance, lane, version, _ = tuple(rows[0])
        body = bytes(body) if payload is None else payload
        mark = fingerprint(kind, body)
        message = Message(
            id=derived(MessageKey(dead.consumer, dead.source, dead.id), f"replaced by {mark.hex()}"),
            source=dead.source,
            type=kind,
            payload=body,
            key=ordering,
            headers=(*unpack_headers(bytes(headers)), (REPLACES, dead.id.encode())),
            content_type=content_type,
            provenance=unpack_provenance(provenance),
        )
        row = row_to_store(message, mark, body, lane, version)
        yield Fetch(Call(queries.store, {"consumer": dead.consumer, "rows": [row]}))
        calls: tuple[Call, ...] = (Call(queries.dead_drop, {"rows": [key]}),)
        if not dead.is_conflict:
            calls = (Call(queries.dead_discard, {"rows": [key]}), *calls, *_let_go(queries, [dead], act))
        touched = [
            _touched(dead, f"replaced by {message.id}"),
            Touched(consumer=dead.consumer, source=dead.source, id=message.id, result="waiting"),
        ]
        # Of two that clash, the one that came first may be dead as well and block its lane: that is not decided here.
        freed = msgspec.structs.replace(dead, id=message.id) if dead.is_conflict else dead
        after = _unstuck(queries, [freed], redriven=True)
        yield Commit(token, (*calls, *after, audit(queries, act, touched)))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    return message.id


def resolve(queries: Queries, dead: DeadLetter, stands: Literal["first", "second"], act: Act) -> Op[str]:
    """Settle a conflict: the payload that came first stands and this one is let go, or this one is to
    take effect too, as a message of its own. Returns the id that now stands."""
    if not dead.is_conflict or dead.reason != Reason.CONFLICT:
        raise errors.UsageError(
            f"id {dead.id!r} is dead, reason {dead.reason}, not in conflict: redrive or discard it"
        )
    if stands == "second":
        return (yield from replace(queries, dead, act))
    token = new_token()
    try:
        yield Begin(token, (Call(queries.dead_drop, {"rows": [_key(dead)]}),))
        yield Commit(token, (audit(queries, act, [_touched(dead, "the first payload stands")]),))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    return dead.id
