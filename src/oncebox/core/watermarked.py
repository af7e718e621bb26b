"""Inline, by watermark: BEGIN and move the partition's mark → handle → COMMIT → settle.

One row per (consumer, topic, partition) says how far the partition is handled. It moves in the transaction of the
effects, so an offset at or below it is a duplicate, and nothing is written per message. That is safe only in order: a
mark that passed an unfinished message would lose it. So a message names the one that was read before it, and the
mark moves only from there on; whatever schedules messages may be wrong, and nothing is lost.

What fails is passed too, kept in the queue or among the dead in the same transaction, under its ledger row.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncebox import errors
from oncebox.core.batch import LOCK_MS, handle_all, once_more
from oncebox.core.failure import (
    RERUNS_MAX,
    STATE_DISCARDED,
    Fate,
    bury,
    judge,
    lost_too_often,
    record_attempt,
)
from oncebox.core.inline import claiming, spilling
from oncebox.core.outcomes import Outcome, Status, processed
from oncebox.core.outgoing import outgoing_calls
from oncebox.core.place import Place, changed, place_of
from oncebox.core.queries import Query
from oncebox.core.steps import Begin, Call, Commit, Execute, Fetch, Handle, Op, Rollback, Settle
from oncebox.core.storing import rows_to_store
from oncebox.core.suspects import BUSY_DELAY_SECONDS, is_suspect, mark_first, may_start, withdraw
from oncebox.core.work import Item, Work

CHANGED_DELAY_SECONDS = 5.0
"""When to look again at a partition that is not the one its mark was made for."""
NAMES_MAX = 100


def deliver_in_partition(work: Work, items: Sequence[Item]) -> Op[list[Item]]:
    """Deal with items of one partition, each following the one before it, and settle them.

    Returns those that are to be tried again. DatabaseUnavailable and cancellation leave rolled back.
    """
    if len(items) > 1:
        return (yield from _deliver_many(work, items))
    [item] = items
    if item.unrecorded is not None:
        yield from _fail(work, item, item.unrecorded)
    else:
        try:
            yield from _deliver(work, item)
        finally:
            work.alone.leave(work)
    yield Settle((item,))
    return []


def _deliver(work: Work, item: Item) -> Op[None]:
    for rerun in range(RERUNS_MAX + 1):
        token = work.token()
        started = handling = False
        try:
            if is_suspect(item) and work.marks_first and not (yield from mark_first(work, item)):
                return
            if not (yield from _advance(work, [item], token)):
                yield Rollback()
                yield from withdraw(work, item)
                return
            if item.refusal is not None:
                yield from _refuse(work, item, token)
                return
            if is_suspect(item):
                yield from _name(work, item)
                if not (yield from may_start(work, item, token, (claiming(work, item, token),))):
                    return
            if item.losses > RERUNS_MAX:
                raise lost_too_often(item)
            started = handling = True
            item.result = yield Handle((item,))
            handling = False
            yield Commit(token, (*outgoing_calls(work, [item]), *((work.withdraw(),) if item.marked else ())))
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            yield Rollback()
            if not isinstance(error, Exception) or isinstance(error, errors.DatabaseUnavailable):
                item.losses += handling
                yield from withdraw(work, item)
                raise
            if isinstance(error, errors.LockBusy) and not handling:
                item.outcome = Outcome(Status.IN_FLIGHT, error=error, delay_seconds=BUSY_DELAY_SECONDS)
                yield from withdraw(work, item)
                return
            if isinstance(error, errors.Conflict) and rerun < RERUNS_MAX:
                continue
            if not started and item.losses <= RERUNS_MAX:
                # Nothing is wrong with the message: it is not charged, and the partition waits.
                item.outcome = Outcome(Status.RETRY, error=error, delay_seconds=BUSY_DELAY_SECONDS)
                yield from withdraw(work, item)
                return
            item.unrecorded = error
            yield from _fail(work, item, error)
            return
        item.outcome = processed(item.result)
        return
    item.outcome = Outcome(Status.IN_FLIGHT, delay_seconds=BUSY_DELAY_SECONDS)
    yield from withdraw(work, item)


def _deliver_many(work: Work, items: Sequence[Item]) -> Op[list[Item]]:
    token = work.token()
    try:
        fresh = yield from _advance(work, items, token, lock_ms=LOCK_MS)
        run = yield from handle_all(work, fresh, hurried=True)
        calls = outgoing_calls(work, run.done)
        for item, error in run.failed:
            calls += yield from _charge(work, item, error, token)
        if run.left:
            # The mark went past all of them; those that ran out of time are not done.
            passed = fresh[len(fresh) - len(run.left) - 1]
            calls += (_moving(work, work.queries.watermark_set, passed, passed),)
        if fresh:
            yield Commit(token, calls)
        else:
            yield Rollback()
    except BaseException as error:
        if isinstance(error, GeneratorExit):
            raise
        yield Rollback()
        return once_more(work, items, error)
    for item in run.done:
        item.outcome = processed(item.result)
    work.succeeded()
    if settled := [item for item in items if item.outcome is not None]:
        yield Settle(settled)
    return [item for item in items if item.outcome is None]


def _advance(work: Work, items: Sequence[Item], token: str, *, lock_ms: int = 0) -> Op[list[Item]]:
    """Open a transaction in which the mark is past these items, and nobody else's. Returns the new ones; the
    others have their outcome."""
    first = place_of(items[0])
    moving = _moving(work, work.queries.watermark_move, items[0], items[-1])
    if (yield Begin(token, (moving,), lock_ms=lock_ms)):
        return list(items)
    rows = yield Fetch(_at(work, work.queries.watermark_look, first))
    if not rows:
        beginning = _moving(work, work.queries.watermark_begin, items[0], items[-1])
        if first.after < 0 and (yield Execute((beginning,))):
            return list(items)
        return _put_off(items)
    last = int(rows[0][0])
    if why := next(filter(None, (changed(place_of(item), rows[0], work.monotonic()) for item in items)), ""):
        return _refused(work, items, why)
    fresh = [item for item in items if place_of(item).offset > last]
    if known := items[: len(items) - len(fresh)]:
        yield from _tell_known(work, known)
    if fresh and place_of(fresh[0]).after > last:
        return _put_off(fresh)
    if fresh:
        yield Execute((_moving(work, work.queries.watermark_set, fresh[0], fresh[-1]),))
    return fresh


def _tell_known(work: Work, items: Sequence[Item]) -> Op[None]:
    """What is passed is a duplicate, or dead: then its broker may still owe its dead-letter topic a copy."""
    keys = [{"source": item.message.source, "message_id": item.message.id} for item in items]
    rows = yield Fetch(work.call(work.queries.lookup, consumer=work.consumer, rows=keys))
    dead = {(row[0], row[1]): str(row[7]) for row in rows if row[7] is not None}
    for item in items:
        reason = dead.get((item.message.source, item.message.id), "")
        item.outcome = Outcome(Status.DEAD if reason else Status.DUPLICATE, reason=reason)


def _at(work: Work, query: Query, place: Place) -> Call:
    return work.call(query, consumer=work.consumer, topic=place.topic, partition=place.partition)


def _moving(work: Work, query: Query, first: Item, last: Item) -> Call:
    """The mark from before `first` to `last`."""
    begins, ends = place_of(first), place_of(last)
    found = _at(work, query, begins)
    more = {"last": ends.offset, "topic_id": ends.topic_id, "digest": ends.digest()}
    if query is work.queries.watermark_move:
        more |= {"first": begins.offset, "after": begins.after}
    return Call(query, {**found.params, **more})


def _put_off(items: Sequence[Item]) -> list[Item]:
    """The one before them is not finished."""
    for item in items:
        item.outcome = Outcome(Status.IN_FLIGHT, delay_seconds=BUSY_DELAY_SECONDS)
    return []


def _refused(work: Work, items: Sequence[Item], why: str) -> list[Item]:
    place = place_of(items[0])
    error = errors.TopicChanged(
        f"consumer {work.consumer!r}: {place.topic}[{place.partition}] is not the one its watermark was made for: "
        f"{why}. Nothing of it is handled or passed. If the topic was deleted and made again, have it start anew: "
        f'oncebox watermarks forget {place.topic} --consumer {work.consumer} --reason "…"; else give the consumer '
        "the cluster it had"
    )
    for item in items:
        item.outcome = Outcome(Status.RETRY, error=error, delay_seconds=CHANGED_DELAY_SECONDS)
    return []


def _refuse(work: Work, item: Item, token: str) -> Op[None]:
    """No handler can have this one: kept among the dead, and passed."""
    assert item.refusal is not None
    reason, error = item.refusal
    yield from _name(work, item)
    yield Commit(token, (claiming(work, item, token), bury(work, item, reason, error, 0)))
    item.outcome = Outcome(Status.DEAD, error=error, reason=reason)


def _fail(work: Work, item: Item, error: BaseException) -> Op[None]:
    """Record a failure whose effects are rolled back already, and pass the message in the same transaction."""
    token = work.token()
    try:
        if not (yield from _advance(work, [item], token)):
            # Another consumer has had it meanwhile, or has it in hand.
            yield Rollback()
            yield from withdraw(work, item)
            return
        calls = yield from _charge(work, item, error, token)
        yield Commit(token, (*calls, *((work.withdraw(),) if item.marked else ())))
    except BaseException as lost:
        if not isinstance(lost, GeneratorExit):
            yield Rollback()
        if isinstance(lost, (errors.Conflict, errors.LockBusy)):
            yield from withdraw(work, item)
            item.outcome = Outcome(Status.RETRY, error=error, delay_seconds=BUSY_DELAY_SECONDS)
            return
        raise
    item.marked = False


def _charge(work: Work, item: Item, error: BaseException, token: str) -> Op[tuple[Call, ...]]:
    """Where the mark is past a failed message: what keeps it, to be committed along. Sets its outcome."""
    yield from _name(work, item)
    for _ in range(RERUNS_MAX):
        if (yield Execute((record_attempt(work, item, error),))):
            break
    failures, deaths = (yield Fetch(work.keyed(work.queries.count_attempts, item)))[0]
    verdict = judge(error, failures, work.policy, work.jitter)
    item.outcome = verdict.outcome
    if verdict.fate is Fate.RETRY:
        if not (yield Fetch(rows_to_store(work, [item]))):
            raise errors.Conflict(
                f"consumer {work.consumer!r}: id {item.message.id!r} came into use meanwhile"
            )
        item.outcome = Outcome(Status.STORED, error=error)
        return spilling(work, item, failures, verdict.delay_seconds)
    state = STATE_DISCARDED if verdict.fate is Fate.DISCARDED else 0
    if not (yield Execute((claiming(work, item, token, state=state),))):
        raise errors.Conflict(f"consumer {work.consumer!r}: id {item.message.id!r} came into use meanwhile")
    if verdict.fate is Fate.DISCARDED:
        return ()
    return (bury(work, item, verdict.reason, error, failures + deaths),)


def _name(work: Work, item: Item) -> Op[None]:
    """An id that no ledger row has. The mark says that this message is new, whatever was kept under its place before:
    a mark that was forgotten has its topic handled again."""
    message = item.message
    for number in range(1, NAMES_MAX):
        if not (yield Fetch(work.keyed(work.queries.lookup_one, item))):
            return
        item.message = msgspec.structs.replace(message, id=f"{message.id}~{number}")
    raise errors.UsageError(f"consumer {work.consumer!r}: id {message.id!r} is in use {NAMES_MAX} times")
