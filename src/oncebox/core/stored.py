"""Stored: the message is kept and acked, then taken, handled and finished in the effects' transaction.

Taking holds the row's lock (PostgreSQL) or the writer's place (SQLite) until commit; handlers
marked long hold a lease instead, with a token that fences a late finisher off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import structs

from oncebox import errors
from oncebox.codec import unpack_headers, unpack_provenance
from oncebox.core.batch import LOCK_MS, Run, Undo, distinct, handle_all, results
from oncebox.core.failure import (
    RERUNS_MAX,
    Fate,
    Verdict,
    bury,
    bury_queued,
    charge_queued,
    leaving,
    lost_too_often,
    record_attempt,
)
from oncebox.core.inline import claiming, known_outcome, vouch
from oncebox.core.lanes import advance_those, block, enter, lanes_from, leave, lock, starts
from oncebox.core.outcomes import Outcome, Reason, Status
from oncebox.core.queries import Query
from oncebox.core.steps import (
    Begin,
    Call,
    Commit,
    Execute,
    Fetch,
    Handle,
    Keep,
    Op,
    Rollback,
    Settle,
    Side,
)
from oncebox.core.storing import rows_to_store
from oncebox.core.window import is_old, look_back
from oncebox.core.work import Item, Work
from oncebox.message import Message

CONTESTED_SECONDS = 1.0
"""When to look again at a row that a silent worker still claims to hold."""


def receive(work: Work, items: Sequence[Item]) -> Op[list[Item]]:
    """Store deliveries: ledger row and queue row together, then settle. Returns those to try again."""
    if work.window_seconds is not None:
        for item in items:
            if is_old(work, item):
                yield from look_back(work, item)
    now, later = distinct(items)
    refused = [item for item in later if item.refusal is not None]
    for item in refused:
        yield from receive_refused(work, item)
    if now:
        yield from _store(work, now)
    settled = [item for item in items if item.outcome is not None]
    doubtful = [item for item in settled if item.doubtful]
    if doubtful:
        yield from vouch(work, doubtful)
    for item in settled:
        yield Settle(item)
    return [item for item in items if item.outcome is None]


def _store(work: Work, items: list[Item]) -> Op[None]:
    store = Fetch(rows_to_store(work, items))
    if any(item.lane is not None for item in items):
        rows = yield from _store_in_order(work, items)
        if rows is None:
            return  # a lane's row was swept between two statements: left without an outcome, stored again
    elif work.marks_first:
        token = work.token()
        try:
            yield Begin(token)
            rows = yield store
            yield Commit(token)
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                yield Rollback()
            raise
    else:
        rows = yield store  # one statement is a transaction of its own: one round trip
    stored = {(row[0], row[1]) for row in rows}
    known: list[Item] = []
    for item in items:
        if item.outcome is not None:
            continue
        if (item.message.source, item.message.id) in stored:
            item.outcome = Outcome(Status.STORED)
        else:
            known.append(item)
    if known:
        yield from _already_known(work, known)


def _store_in_order(work: Work, items: list[Item]) -> Op[list[Any] | None]:
    """Store under the lanes' locks and hand on the turn. What is past is kept in the ledger as stale."""
    keys, touching = enter(work, items)
    token = work.token()
    try:
        yield Begin(token, (touching,))
        lanes = lanes_from((yield Fetch(lock(work.queries, work.consumer, keys))))
        if len(lanes) < len(keys):
            yield Rollback()
            return None
        if started := starts(work.queries, work.consumer, work.policy, lanes, items):
            yield Execute(started)
        rows: list[Any] = yield Fetch(rows_to_store(work, items))
        yield Commit(token, advance_those(work, keys))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    stored = {(row[0], row[1]) for row in rows}
    for item in items:
        is_new = (item.message.source, item.message.id) in stored
        if is_new and item.lane is not None and lanes[item.lane].is_past(item.version):
            item.outcome = Outcome(Status.STALE)
    return rows


def _already_known(work: Work, items: list[Item]) -> Op[None]:
    """Name the outcomes of redeliveries; a conflicting payload is buried beside the original."""
    rows = yield Fetch(
        work.call(
            work.queries.lookup,
            consumer=work.consumer,
            rows=[{"source": item.message.source, "message_id": item.message.id} for item in items],
        )
    )
    found = {(row[0], row[1]): tuple(row) for row in rows}
    graves: list[tuple[Item, Verdict]] = []
    for item in items:
        row = found.get((item.message.source, item.message.id))
        if row is None:
            continue  # gone meanwhile: left without an outcome, so it is stored again
        outcome = known_outcome(work, item, row)
        if isinstance(outcome, Verdict):
            graves.append((item, outcome))
        else:
            item.outcome = outcome
    if graves:
        yield from _write(work, tuple(bury(work, item, str(v.reason), v.error, 0) for item, v in graves))
        for item, verdict in graves:
            item.outcome = verdict.outcome


def receive_refused(work: Work, item: Item) -> Op[None]:
    """Nobody can handle it, ever: claimed and buried at once."""
    assert item.refusal is not None
    reason, error = item.refusal
    token = work.token()
    try:
        changed = yield Begin(token, (claiming(work, item, token),), carried=True)
        if changed:
            # By sequence its version is missing, like one that never came; by arrival nothing else says so.
            blocks = item.lane is not None and item.version is None and work.policy.on_dead == "block"
            after = (enter(work, [item])[1], block(work, item)) if blocks else ()
            yield Commit(token, (bury(work, item, reason, error, 0), *after))
            item.outcome = Outcome(Status.DEAD, error=error, reason=reason)
            return
        yield Rollback()
    except BaseException as lost:
        if not isinstance(lost, GeneratorExit):
            yield Rollback()
        raise
    yield from _already_known(work, [item])


def _write(work: Work, calls: tuple[Call, ...]) -> Op[None]:
    """A small transaction of our own."""
    token = work.token()
    try:
        yield Begin(token)
        yield Commit(token, calls)
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise


def to_item(work: Work, row: Sequence[Any]) -> Item:
    """A queue row as an item."""
    seq, source, message_id, kind, fingerprint, key, payload, headers, content_type, provenance = row[:10]
    attempts, deaths, token, lane, version = row[10:15]
    message = Message(
        id=str(message_id),
        type=str(kind),
        source=str(source),
        payload=bytes(payload),
        headers=unpack_headers(bytes(headers)),
        key=key,
        content_type=str(content_type),
        provenance=unpack_provenance(str(provenance)),
        attempt=1 + attempts + deaths,
    )
    item = Item(message, bytes(fingerprint), work.handler(message.type))
    item.seq, item.attempts, item.deaths, item.token = seq, attempts, deaths, token
    item.lane, item.version = lane, version
    return item


def work_batch(work: Work, *, suspect: bool = False) -> Op[int]:
    """Take what is due, handle it, finish it, in one transaction. Returns how many it dealt with."""
    token = work.token()
    items: list[Item] = []
    try:
        taken = yield from _take(work, token, suspect)
        if not taken:
            return 0 if taken is not None else 1
        items = taken
        if suspect and items[0].deaths >= work.policy.crash_limit:
            error = errors.ProcessDied(f"{items[0].deaths} processes died with this message in hand")
            verdict = Verdict(Fate.DEAD, error, Reason.CRASH_LOOP)
            buried = bury_queued(work, items[0], verdict, charged=items[0].deaths)
            yield Commit(token, (*leave(work, buried, (), [items[0]]), work.withdraw()))
            yield from _settle(items, verdict)
            return 1
        if len(items) == 1 and work.reruns.get(items[0].seq, 0) > RERUNS_MAX:
            raise lost_too_often(items[0])
        run = yield from _handle_those(work, items)
        verdicts, calls = _charges(work, run.failed)
        finish = work.call(work.queries.finish, seqs=sorted(item.seq for item in run.done))
        calls = (*(results(work, run.done)), *((finish,) if run.done else ()), *calls)
        calls = leave(work, calls, *leaving(run.done, verdicts))
        if run.failed or run.left:
            calls += (work.withdraw(),)
        yield Commit(token, calls)
    except BaseException as error:
        if isinstance(error, GeneratorExit):
            raise
        yield Rollback()
        return (yield from _give_up(work, items, error))
    for item in run.done:
        work.reruns.pop(item.seq, None)
        item.outcome = Outcome(Status.PROCESSED, item.result)
    for item, verdict in verdicts:
        work.unrecorded.pop(item.seq, None)
        item.outcome = verdict.outcome
    for item in (*run.done, *(failed for failed, _ in run.failed)):
        yield Settle(item)
    work.succeeded()
    return len(items)


def _handle_those(work: Work, items: list[Item]) -> Op[Run]:
    """Run them, but for those whose last failure is still to be written down."""
    known = [item for item in items if item.seq in work.unrecorded]
    if known and len(items) == 1:
        run = Run()
        run.failed.append((items[0], work.unrecorded[items[0].seq]))
        raise Undo(run)
    run = yield from handle_all(work, [item for item in items if item not in known])
    run.failed += [(item, work.unrecorded[item.seq]) for item in known]
    return run


def _settle(items: list[Item], verdict: Verdict) -> Op[None]:
    for item in items:
        item.outcome = verdict.outcome
        yield Settle(item)


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
    if not isinstance(error, Exception) or isinstance(error, errors.DatabaseUnavailable):
        _count_loss(work, items, error)
        yield from _withdraw(work)
        raise error
    if isinstance(error, Undo):
        item, cause = error.run.failed[0]
        return (yield from _charge_alone(work, item, cause))
    if len(items) == 1:
        item = items[0]
        if isinstance(error, (errors.Conflict, errors.LockBusy)):
            work.reruns[item.seq] = work.reruns.get(item.seq, 0) + 1
            if work.reruns[item.seq] <= RERUNS_MAX:
                yield from _withdraw(work)
                return 1
        return (yield from _charge_alone(work, item, error))
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


def _charge_alone(work: Work, item: Item, error: BaseException) -> Op[int]:
    """Record a single message's failure in a transaction of its own, and withdraw the marker with it."""
    verdict, calls = charge_queued(work, item, error)
    if isinstance(error, Exception):
        work.unrecorded[item.seq] = error
    yield from _write(work, (*leave(work, calls, *leaving((), [(item, verdict)])), work.withdraw()))
    work.unrecorded.pop(item.seq, None)
    work.reruns.pop(item.seq, None)
    item.outcome = verdict.outcome
    yield Settle(item)
    return 1


def _take(work: Work, token: str, suspect: bool) -> Op[list[Item] | None]:
    """Open a transaction with due rows in it that nobody else has or still claims to have.

    An empty list: nothing is due. None: what was due is contested and was put off; look again.
    """
    queries, limit = work.queries, 1 if suspect else work.limit
    lock_ms = LOCK_MS if limit > 1 else 0
    if suspect or work.idle or work.marks_first:
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
        yield Begin(token, lock_ms=lock_ms)
        rows = yield Fetch(work.call(queries.taken, seqs=seqs))
        return [to_item(work, row) for row in rows]
    fence = work.call(queries.fence, slot=f"{work.worker}/{work.slot}")
    yield Begin(token, (fence,), lock_ms=lock_ms)
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


def work_long(work: Work) -> Op[int]:
    """A handler marked long: lease, commit, run in a transaction of its own, finish only by token."""
    item = yield from take_leased(work, work.long_types)
    if item is None:
        return 0
    if item.outcome is not None:
        yield Settle(item)
        return 1
    try:
        yield Keep(item, True)
        yield from _run_leased(work, item)
    except BaseException as error:
        if isinstance(error, GeneratorExit):
            raise
        yield from undone(work, item)
        if isinstance(error, errors.LeaseLost):
            item.outcome = Outcome(Status.IN_FLIGHT, error=error)
        elif not isinstance(error, Exception) or isinstance(error, errors.DatabaseUnavailable):
            yield from give_up(work, item)
            raise
        else:
            yield from _charge_lease(work, item, error)
    yield Keep(item, False)
    yield Settle(item)
    return 1


def _run_leased(work: Work, item: Item) -> Op[None]:
    token = work.token()
    fence = (work.call(work.queries.fence, slot=f"{work.worker}/{work.slot}"),) if work.queries.fence else ()
    yield Begin(token, fence)
    item.result = yield Handle((item,))
    calls = results(work, [item])
    still = yield Fetch(work.call(work.queries.still_leased, seq=item.seq, token=item.token))
    if not still:
        raise errors.LeaseLost(
            f"consumer {work.consumer!r}: the lease on id {item.message.id!r} ran out while it was handled; "
            "another worker has it, and this one's effects are rolled back"
        )
    finish = work.call(work.queries.finish_leased, seq=item.seq, token=item.token)
    yield Commit(token, leave(work, (*calls, finish), [item]))
    item.outcome = Outcome(Status.PROCESSED, item.result)


def take_leased(work: Work, kinds: list[str]) -> Op[Item | None]:
    """Take one message of these types and put a lease on it. A lapsed lease found on it is a death."""
    token = work.token()
    types: dict[str, Any] = {"consumer": work.consumer, "types": kinds, "except": []}
    leased: Item | None = None
    try:
        yield Begin(token)
        rows = yield Fetch(work.call(work.queries.take, **types, limit=1))
        if not rows:
            rows = yield Fetch(work.call(work.queries.take_suspect, **types))
        if not rows:
            yield Rollback()
            return None
        item = to_item(work, rows[0])
        lapsed = int(item.token is not None and not (yield from _is_alive(work, item.token)))
        died = errors.ProcessDied("the lease ran out: its process died or stood still")
        calls: tuple[Call, ...] = (record_attempt(work, item, died, died=True),) if lapsed else ()
        if item.deaths + lapsed >= work.policy.crash_limit:
            verdict = Verdict(Fate.DEAD, died, Reason.CRASH_LOOP)
            calls += bury_queued(work, item, verdict, charged=item.deaths + lapsed)
            yield Commit(token, leave(work, calls, (), [item]))
            item.outcome = verdict.outcome
            return item
        item.deaths += lapsed
        item.message = structs.replace(item.message, attempt=1 + item.attempts + item.deaths)
        item.token = f"{work.worker}/{work.token()}"
        lease = work.call(
            work.queries.lease,
            seq=item.seq,
            token=item.token,
            seconds=work.policy.lease_seconds,
            deaths=lapsed,
        )
        leased = item
        yield Commit(token, (*calls, lease))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
            if leased is not None:
                # Cancelled or cut off around the commit: if it went through, the lease is handed back;
                # if it did not, the token matches nothing.
                yield from give_up(work, leased)
        raise
    return item


def _is_alive(work: Work, token: str) -> Op[bool]:
    """Whether the worker that let its lease lapse lives on: it lost its connection or was cancelled, and
    no process died."""
    holder = token.rpartition("/")[0]
    if holder == work.worker:
        return True
    alive = work.call(work.queries.is_alive, id=holder, seconds=work.lapse_seconds)
    return bool((yield Fetch(alive)))


def undone(work: Work, item: Item) -> Op[None]:
    """Roll back; cancelled even in that, the lease is handed back."""
    try:
        yield Rollback()
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield from give_up(work, item)
        raise


def give_up(work: Work, item: Item) -> Op[None]:
    """Hand a lease back that could not be finished: due at once, and no death of anybody."""
    yield Keep(item, False)
    try:
        yield Side(work.call(work.queries.give_up, seq=item.seq, token=item.token))
    except errors.DatabaseError:
        return


def _charge_lease(work: Work, item: Item, error: BaseException) -> Op[None]:
    """Record a long handler's failure, if the lease is still ours to record it under."""
    token = work.token()
    verdict, calls = charge_queued(work, item, error)
    try:
        yield Begin(token)
        still = yield Fetch(work.call(work.queries.still_leased, seq=item.seq, token=item.token))
        if not still:
            yield Rollback()
            item.outcome = Outcome(Status.IN_FLIGHT, error=error)
            return
        yield Commit(token, leave(work, calls, *leaving((), [(item, verdict)])))
    except BaseException as lost:
        if not isinstance(lost, GeneratorExit):
            yield Rollback()
            yield from give_up(work, item)
        raise
    item.outcome = verdict.outcome


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
