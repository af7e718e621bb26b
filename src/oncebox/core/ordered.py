"""Inline, in order: the lane is locked, and what is not its turn is stored behind what is.

Only for sources that pin a key to one consumer: a lock excludes, it does not order. A message that
fails, or comes before one that is missing, goes to the queue and is acked; while a lane has such a
backlog its later messages are stored behind it.
"""

from __future__ import annotations

from oncebox import errors
from oncebox.core.failure import RERUNS_MAX, STATE_STALE, bury, lost_too_often
from oncebox.core.inline import already_known, claiming, closing, fail, vouch
from oncebox.core.lanes import Lane, advance_those, block, enter, lanes_from, lock, starts
from oncebox.core.outcomes import KEPT, Outcome, Status, processed
from oncebox.core.steps import Begin, Call, Commit, Execute, Fetch, Handle, Op, Rollback, Settle
from oncebox.core.storing import rows_to_store
from oncebox.core.suspects import BUSY_DELAY_SECONDS, is_suspect, mark_first, may_start, withdraw
from oncebox.core.window import is_old, look_back
from oncebox.core.work import Item, Work


def deliver_in_order(work: Work, item: Item) -> Op[None]:
    """One delivery to its outcome, and settled."""
    if item.unrecorded is not None:
        yield from fail(work, item, item.unrecorded)
    else:
        # Before its lane is looked at: it may be put in line there, and what is in line is run.
        if work.window_seconds is not None and is_old(work, item):
            yield from look_back(work, item)
        try:
            yield from _deliver(work, item)
        finally:
            work.alone.leave(work)
    if item.doubtful:
        yield from vouch(work, [item])
    yield Settle((item,))


def _deliver(work: Work, item: Item) -> Op[None]:
    for rerun in range(RERUNS_MAX + 1):
        token = work.token()
        handling = False
        try:
            if is_suspect(item) and work.marks_first and not (yield from mark_first(work, item)):
                return
            lane = yield from _open(work, item, token)
            if lane is None:
                continue  # its row was swept between the two statements
            if (yield from _put_aside(work, item, token, lane)):
                yield from withdraw(work, item)
                return
            if not (yield Execute((claiming(work, item, token),))):
                if (yield from already_known(work, item, token)):
                    return
                continue
            if item.refusal is not None:
                yield from _refuse(work, item, token, lane)
                yield from withdraw(work, item)
                return
            if is_suspect(item):
                after = _given_up(work, item, lane)
                if not (yield from may_start(work, item, token, after=after)):
                    return
            if item.losses > RERUNS_MAX:
                raise lost_too_often(item)
            handling = True
            item.result = yield Handle((item,))
            handling = False
            yield Commit(token, (*closing(work, item), *_passed(work, item)))
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
            item.unrecorded = error
            yield from fail(work, item, error)
            return
        item.outcome = processed(item.result)
        return
    item.outcome = Outcome(Status.IN_FLIGHT, delay_seconds=BUSY_DELAY_SECONDS)
    yield from withdraw(work, item)


def _open(work: Work, item: Item, token: str) -> Op[Lane | None]:
    """Open a transaction that holds the item's lane."""
    keys, touching = enter(work, [item])
    yield Begin(token, (touching,))
    lanes = lanes_from((yield Fetch(lock(work.queries, work.consumer, keys))))
    if keys[0] not in lanes:
        yield Rollback()
        return None
    if started := starts(work.queries, work.consumer, work.policy, lanes, [item]):
        yield Execute(started)
    return lanes[keys[0]]


def _put_aside(work: Work, item: Item, token: str, lane: Lane) -> Op[bool]:
    """What is past is stale; what is not its turn waits in the queue. True when either was the case."""
    if lane.is_past(item.version):
        if (yield Execute((claiming(work, item, token, state=STATE_STALE),))):
            yield Commit(token)
            item.outcome = Outcome(Status.STALE)
            return True
        return (yield from already_known(work, item, token))
    if item.refusal is not None:
        return False  # what is in line is run
    assert item.lane is not None
    backlog = yield Fetch(work.call(work.queries.key_backlog, consumer=work.consumer, keys=[item.lane]))
    if not backlog and not lane.blocked and not lane.is_ahead(item.version):
        return False
    if not (yield Fetch(rows_to_store(work, [item]))):
        return (yield from already_known(work, item, token))
    yield Commit(token, advance_those(work, [item.lane]))
    item.outcome = KEPT
    return True


def _passed(work: Work, item: Item) -> tuple[Call, ...]:
    if item.version is None:
        return ()
    moved = [{"key": item.lane, "version": item.version}]
    return (work.call(work.queries.key_moved, consumer=work.consumer, rows=moved),)


def _refuse(work: Work, item: Item, token: str, lane: Lane) -> Op[None]:
    """Nobody can handle it: kept among the dead, where it blocks its lane or is passed over.

    One that is ahead of its turn is missing when the turn comes, like one that never came.
    """
    assert item.refusal is not None
    reason, error = item.refusal
    yield Commit(token, (bury(work, item, reason, error, 0), *_given_up(work, item, lane)))
    item.outcome = Outcome(Status.DEAD, error=error, reason=reason)


def _given_up(work: Work, item: Item, lane: Lane) -> tuple[Call, ...]:
    """What its burial means to its lane, which it blocks or leaves to the next."""
    assert item.lane is not None
    blocks = work.policy.on_dead == "block" and not lane.is_ahead(item.version)
    after = (block(work, item),) if blocks else ()
    # Its successor may be in line already.
    return (*_passed(work, item), *after, *advance_those(work, [item.lane]))
