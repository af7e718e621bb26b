"""Stored: what was received is taken, handled and finished in the effects' transaction.

Taking holds the row's lock (PostgreSQL) or the writer's place (SQLite) until commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from oncebox import errors
from oncebox.codec import unpack_headers, unpack_provenance
from oncebox.core.batch import CHAINED_SECONDS, LOCK_MS, Run, Undo, handle_all, is_lost, results
from oncebox.core.failure import (
    RERUNS_MAX,
    Fate,
    Verdict,
    bury_queued,
    charge_queued,
    leaving,
    lost_too_often,
)
from oncebox.core.lanes import leave
from oncebox.core.outcomes import Reason, processed
from oncebox.core.queries import Query
from oncebox.core.receiving import write
from oncebox.core.steps import (
    Begin,
    Call,
    Commit,
    Fetch,
    Op,
    Rollback,
    Settle,
    Side,
)
from oncebox.core.work import Item, Work
from oncebox.message import Message

CONTESTED_SECONDS = 1.0
"""When to look again at a row that a silent worker still claims to hold."""


def to_item(work: Work, row: Sequence[Any]) -> Item:
    """A queue row as an item."""
    (
        seq, source, message_id, kind, fingerprint, key, payload, headers, content_type, provenance,
        attempts, deaths, token, lane, version,
    ) = row  # fmt: skip
    if type(payload) is not bytes:  # a driver may give views of its own memory
        payload, fingerprint, headers = bytes(payload), bytes(fingerprint), bytes(headers)
    message = Message(
        id=message_id,
        type=kind,
        source=source,
        payload=payload,
        headers=unpack_headers(headers),
        key=key,
        content_type=content_type,
        provenance=unpack_provenance(provenance),
        attempt=1 + attempts + deaths,
    )
    item = Item(message, fingerprint, work.handler(kind))
    item.seq = seq
    if attempts or deaths:
        item.attempts, item.deaths = attempts, deaths
    if token is not None:
        item.token = token
    if lane is not None:
        item.lane, item.version = lane, version
    return item


def work_batch(work: Work, *, suspect: bool = False) -> Op[int]:
    """Take what is due, handle it, finish it, in one transaction. Returns how many it dealt with.

    While batches are full, each one's COMMIT opens the next one's transaction, which saves a round trip.
    """
    until = work.monotonic() + CHAINED_SECONDS
    dealt, opened = yield from _batch(work, None, until, suspect=suspect)
    while opened is not None:
        more, opened = yield from _batch(work, opened, until)
        dealt += more
    return dealt


def _batch(
    work: Work, opened: str | None, until: float, *, suspect: bool = False
) -> Op[tuple[int, str | None]]:
    """One batch, in the transaction that is open under the token `opened`, or in a new one. Returns how many it dealt
    with, and the token of the transaction that its commit opened."""
    token = opened or work.token()
    items: list[Item] = []
    run = Run()
    verdicts: list[tuple[Item, Verdict]] = []
    then: Begin | None = None
    try:
        taken = yield from _take(work, token, suspect, is_open=opened is not None)
        if not taken:
            return (0 if taken is not None else 1), None
        items = taken
        if suspect and items[0].deaths >= work.policy.crash_limit:
            error = errors.ProcessDied(f"{items[0].deaths} processes died with this message in hand")
            verdict = Verdict(Fate.DEAD, error, Reason.CRASH_LOOP)
            buried = bury_queued(work, items[0], verdict, charged=items[0].deaths)
            yield Commit(token, (*leave(work, buried, (), [items[0]]), work.withdraw()))
            yield from _settle(items, verdict)
            return 1, None
        if len(items) == 1 and work.reruns.get(items[0].seq, 0) > RERUNS_MAX:
            raise lost_too_often(items[0])
        run = yield from _handle_those(work, items, hurried=not suspect and work.limit > 1)
        verdicts, calls = _charges(work, run.failed)
        finish = work.call(work.queries.finish, seqs=sorted(item.seq for item in run.done))
        calls = (*(results(work, run.done)), *((finish,) if run.done else ()), *calls)
        calls = leave(work, calls, *leaving(run.done, verdicts))
        if run.failed or run.left:
            calls += (work.withdraw(),)
        elif not suspect and _goes_on(work, items, until):
            then = _opening(work, work.token(), work.limit)
        yield Commit(token, calls, then)
    except BaseException as error:
        if isinstance(error, GeneratorExit):
            raise
        yield Rollback()
        if then is None or is_lost(error) or not (yield from _are_finished(work, run.done)):
            return (yield from _give_up(work, items, error)), None
        then = None  # the commit went through; what failed is what it was to open
    for item in run.done:
        work.reruns.pop(item.seq, None)
        item.outcome = processed(item.result)
    for item, verdict in verdicts:
        work.unrecorded.pop(item.seq, None)
        item.outcome = verdict.outcome
    if settled := [*run.done, *(failed for failed, _ in run.failed)]:
        yield Settle(settled)
    work.succeeded()
    return len(items), None if then is None else then.token


def _goes_on(work: Work, items: list[Item], until: float) -> bool:
    """Whether there is probably more, and time for it. SQLite's transactions are opened without a round trip."""
    return len(items) >= work.limit > 1 and not work.marks_first and work.monotonic() < until


def _are_finished(work: Work, items: list[Item]) -> Op[bool]:
    """Whether their commit went through although its reply did not say so: all of them have left the queue. One of
    them may have been finished by another worker since."""
    keys = [{"source": item.message.source, "message_id": item.message.id} for item in items]
    rows = yield Fetch(work.call(work.queries.lookup, consumer=work.consumer, rows=keys))
    return not any(row[6] for row in rows)


def _opening(work: Work, token: str, limit: int) -> Begin:
    """Open a transaction that refuses to be committed by a handler."""
    fence = work.call(work.queries.fence, slot=f"{work.worker}/{work.slot}")
    return Begin(token, (fence,), lock_ms=LOCK_MS if limit > 1 else 0)


def _handle_those(work: Work, items: list[Item], *, hurried: bool) -> Op[Run]:
    """Run them, but for those whose last failure is still to be written down."""
    known = [item for item in items if item.seq in work.unrecorded]
    if known and len(items) == 1:
        run = Run()
        run.failed.append((items[0], work.unrecorded[items[0].seq]))
        raise Undo(run)
    unknown = [item for item in items if item not in known] if known else items
    run = yield from handle_all(work, unknown, hurried=hurried)
    run.failed += [(item, work.unrecorded[item.seq]) for item in known]
    return run


def _settle(items: list[Item], verdict: Verdict) -> Op[None]:
    for item in items:
        item.outcome = verdict.outcome
    yield Settle(items)


def _charges(
    work: Work, failed: list[tuple[Item, Exception]]
) -> tuple[list[tuple[Item, Verdict]], tuple[Call, ...]]:
    verdicts: list[tuple[Item, Verdict]] = []
    calls: tuple[Call, ...] = ()
    for item, error in sorted(failed, key=lambda pair: pair[0].seq):
        verdict, charge = charge_queued(work, item, error)
        verdicts.append((item, verdict))
        calls += charge
    return verdicts, calls


def _give_up(work: Work, items: list[Item], error: BaseException) -> Op[int]:
    """The transaction is rolled back; decide who is charged. The marker stays until that is on record,
    so that nobody else runs the message in between."""
    if not isinstance(error, Exception) or is_lost(error):
        _count_loss(work, items, error)
        yield from _withdraw(work)
        raise error
    if isinstance(error, Undo):
        yield from _charge(work, error.run.failed)
        return len(items)
    if len(items) == 1:
        item = items[0]
        if isinstance(error, (errors.Conflict, errors.LockBusy)):
            work.reruns[item.seq] = work.reruns.get(item.seq, 0) + 1
            if work.reruns[item.seq] <= RERUNS_MAX:
                if isinstance(error, errors.LockBusy):
                    work.conflicted()  # down to one, which has all its time
                yield from _withdraw(work)
                return 1
        yield from _charge(work, [(item, error)])
        return 1
    # Many, and no culprit is known: smaller batches, down to one by one.
    if isinstance(error, (errors.Conflict, errors.LockBusy)):
        work.conflicted()
    else:
        work.limit = 1
    yield from _withdraw(work)
    return len(items)


def _count_loss(work: Work, items: list[Item], error: BaseException) -> None:
    """A connection that is lost again and again in the same message's handler is that handler's doing."""
    if isinstance(error, errors.DatabaseUnavailable):
        for item in items:
            work.reruns[item.seq] = work.reruns.get(item.seq, 0) + 1
        if len(items) > 1:
            work.limit = 1


def _withdraw(work: Work) -> Op[None]:
    try:
        yield Side(work.withdraw())
    except errors.DatabaseError:
        return


def _charge(work: Work, failed: list[tuple[Item, Exception]]) -> Op[None]:
    """Record failures in a transaction of their own, and withdraw the marker with them."""
    verdicts, calls = _charges(work, failed)
    work.unrecorded.update((item.seq, error) for item, error in failed)
    yield from write(work, (*leave(work, calls, *leaving((), verdicts)), work.withdraw()))
    for item, verdict in verdicts:
        work.unrecorded.pop(item.seq, None)
        work.reruns.pop(item.seq, None)
        item.outcome = verdict.outcome
    if verdicts:
        yield Settle([item for item, _ in verdicts])


def _take(work: Work, token: str, suspect: bool, *, is_open: bool) -> Op[list[Item] | None]:
    """A transaction, opened if it is not yet, with due rows in it that nobody else has or still claims to have.

    An empty list: nothing is due. None: what was due is contested and was put off; look again.
    """
    queries, limit = work.queries, 1 if suspect else work.limit
    if not is_open and (suspect or work.idle or work.marks_first):
        due = queries.due_suspect if suspect else queries.due
        if not (yield Fetch(work.call(due, **work.short()))):
            work.idle = work.idle or not suspect
            return []
    if work.marks_first:
        pick = queries.pick_suspect if suspect else queries.pick
        params = {**work.short(), "worker": work.worker, "slot": work.slot}
        picked = yield Side(work.call(pick, **params, **({} if suspect else {"limit": limit})))
        seqs = msgspec.json.decode(picked[0][0])
        if not seqs:
            return []
        yield Begin(token, lock_ms=LOCK_MS if limit > 1 else 0)
        rows = yield Fetch(work.call(queries.taken, seqs=seqs))
        return [to_item(work, row) for row in rows]
    if not is_open:
        yield _opening(work, token, limit)
    take = queries.take_suspect if suspect else queries.take
    rows = yield Fetch(work.call(take, **work.short(), **({} if suspect else {"limit": limit})))
    if not rows:
        yield Rollback()
        work.idle = work.idle or not suspect
        return []
    work.idle = False
    items = [to_item(work, row) for row in rows]
    contested = yield Side(
        work.call(
            queries.mark,
            worker=work.worker,
            slot=work.slot,
            consumer=work.consumer,
            seqs=[item.seq for item in items],
        )
    )
    if not contested:
        return items
    away = {row[0] for row in contested}
    yield Commit(
        token, (work.call(queries.postpone, seqs=sorted(away), seconds=CONTESTED_SECONDS), work.withdraw())
    )
    return None


def bury_unknown(work: Work, types: list[str], limit: int = 100) -> Op[int]:
    """Stored messages of a type that nobody here handles, past the time a deployment may take."""
    buried = yield from _bury_unknown(work, work.queries.take_unknown, types, limit)
    return buried + (yield from _bury_unknown(work, work.queries.take_unknown_suspect, types, limit))


def _bury_unknown(work: Work, query: Query, types: list[str], limit: int) -> Op[int]:
    token = work.token()
    try:
        yield Begin(token)
        rows = yield Fetch(
            work.call(
                query,
                consumer=work.consumer,
                types=types,
                limit=limit,
                age_seconds=work.policy.unknown_type_seconds,
            )
        )
        items = [to_item(work, row) for row in rows]
        calls: tuple[Call, ...] = ()
        for item in items:
            error = errors.UsageError(
                f"consumer {work.consumer!r} has no handler for type {item.message.type!r}; "
                "deploy one and redrive, or discard"
            )
            calls += bury_queued(work, item, Verdict(Fate.DEAD, error, Reason.UNKNOWN_TYPE), charged=0)
        if not items:
            yield Rollback()
            return 0
        yield Commit(token, leave(work, calls, (), items))
    except BaseException as lost:
        if not isinstance(lost, GeneratorExit):
            yield Rollback()
        raise
    return len(items)
