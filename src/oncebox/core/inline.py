"""Inline: deliver → BEGIN and claim → handle → finish and COMMIT → settle.

One message, one transaction. Where the next message is at hand, its BEGIN and claim travel with
this one's COMMIT, so that a message costs two round trips and its handler's own.
"""

from __future__ import annotations

from oncebox import errors
from oncebox.codec import decode_result, encode_result
from oncebox.core.failure import (
    RERUNS_MAX,
    STATE_DISCARDED,
    Fate,
    Verdict,
    bury,
    judge,
    lost_too_often,
    record_attempt,
)
from oncebox.core.keeping import keeping
from oncebox.core.known import holds, known_outcome
from oncebox.core.lanes import advance_those, enter, lanes_of, leave, lock
from oncebox.core.outcomes import OBSERVED, Outcome, Reason, Status, processed
from oncebox.core.outgoing import outgoing_calls
from oncebox.core.steps import (
    Begin,
    Call,
    Commit,
    Execute,
    Fetch,
    Flush,
    Handle,
    Next,
    Op,
    Rollback,
    Settle,
)
from oncebox.core.storing import rows_to_store
from oncebox.core.suspects import (
    BUSY_DELAY_SECONDS,
    is_suspect,
    mark_first,
    may_follow,
    may_start,
    withdraw,
)
from oncebox.core.window import is_old, look_back
from oncebox.core.work import Item, Work

GROUP_MAX = 100
"""Most lazily committed messages that wait for one flush."""


class Opened:
    """A transaction that is open with its claim made: the token it carries, and whether it is new."""

    __slots__ = ("fresh", "token")

    def __init__(self, token: str, fresh: bool) -> None:
        self.token = token
        self.fresh = fresh


def stream(work: Work, item: Item | None) -> Op[None]:
    """Handle items, one transaction each, for as long as the next one is at hand."""
    opened: Opened | None = None
    held: list[Item] = []
    while item is not None:
        # A flush inside the next message's transaction would flush nothing: the last of a group is
        # committed alone.
        overdue = work.is_overdue()
        chain = not overdue and (not work.lazy or len(held) + 1 < GROUP_MAX)
        try:
            opened, following = yield from deliver(work, item, opened, chain=chain)
        finally:
            work.alone.leave(work)
        held.append(item)
        if following is None and not overdue:
            following = yield Next()
        if not work.lazy or following is None or len(held) >= GROUP_MAX:
            if work.lazy or item.doubtful:
                yield from vouch(work, held)
            yield Settle(held)
            held = []
        item = following


def deliver(
    work: Work, item: Item, opened: Opened | None, *, chain: bool = True
) -> Op[tuple[Opened | None, Item | None]]:
    """One delivery to its outcome. Returns what the commit opened for the following item, and that item.

    Lets DatabaseUnavailable (nothing acked, nothing charged) and cancellation out, rolled back.
    """
    following: Item | None = None
    if item.unrecorded is not None:
        yield from fail(work, item, item.unrecorded)
        return None, following
    for rerun in range(RERUNS_MAX + 1):
        committing = handling = False
        then: Begin | None = None
        known: Outcome | Verdict | None = None
        try:
            if opened is None:
                opened = yield from claim(work, item)
                if opened is None:
                    return None, following
            token, fresh, opened = opened.token, opened.fresh, None
            if not fresh and not (work.policy.observe and (yield from observed(work, item))):
                known = yield from look_up(work, item)
                if isinstance(known, Outcome) and chain and not (item.doubtful or item.marked):
                    if following is None:
                        following = yield Next()
                    if following is not None and may_follow(following):
                        # Nothing was written: to commit it is to roll it back, and the next claim travels along.
                        then = begin(work, following)
                        changed = yield Commit(token, (), then)
                        item.outcome = known
                        return Opened(then.token, changed == 1), following
                yield from end_known(work, item, token, known)
                if known is not None:
                    return None, following
                continue  # its row went away between the two statements: ask again, never "new"
            if fresh and work.window_seconds is not None and is_old(work, item):
                yield from look_back(work, item)
            if item.refusal is not None:
                yield from refuse(work, item, token)
                return None, following
            if fresh and is_suspect(item) and not (yield from may_start(work, item, token)):
                return None, following
            if item.losses > RERUNS_MAX:
                raise lost_too_often(item)
            handling = True
            item.result = yield Handle((item,))
            handling = False
            if following is None and chain:
                following = yield Next()
            chained = following is not None and item.observed is None and may_follow(following)
            then = begin(work, following) if chained and following is not None else None
            calls = closing(work, item)
            committing = True
            changed = yield Commit(token, calls, then)
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            yield Rollback()
            if not isinstance(error, Exception) or isinstance(error, errors.DatabaseUnavailable):
                item.losses += handling
                yield from withdraw(work, item)
                raise
            if then is not None and isinstance(known, Outcome):
                item.outcome = known  # what failed is the claim that travelled along
                return None, following
            if committing and then is not None and (yield from is_done(work, item)):
                # The commit went through; what failed is the claim that travelled with it.
                item.outcome = processed(item.result)
                return None, following
            if isinstance(error, errors.Conflict) and rerun < RERUNS_MAX:
                continue
            item.unrecorded = error
            yield from fail(work, item, error)
            return None, following
        told = item.observed
        item.outcome = processed(item.result) if told is None else Outcome(told, item.result)
        return (Opened(then.token, changed == 1) if then is not None else None), following
    item.outcome = Outcome(Status.IN_FLIGHT, delay_seconds=BUSY_DELAY_SECONDS)
    yield from withdraw(work, item)
    return None, following


def begin(work: Work, item: Item) -> Begin:
    """Open a transaction with the item's claim in it."""
    token = work.token()
    return Begin(token, (claiming(work, item, token, lazy=work.lazy),), lazy=work.lazy, carried=True)


def claiming(work: Work, item: Item, token: str, *, state: int = 0, lazy: bool = False) -> Call:
    """The insert that makes the key ours, or changes nothing."""
    message = item.message
    return Call(
        work.queries.claim,
        {
            "consumer": work.consumer,
            "source": message.source,
            "message_id": message.id,
            "type": message.type,
            "fingerprint": item.fingerprint,
            "state": state,
            "lazy": lazy,
            "token": token,
        },
    )


def claim(work: Work, item: Item) -> Op[Opened | None]:
    """Open and claim. None, with the outcome set, when another worker holds the key for too long."""
    if is_suspect(item) and work.marks_first and not (yield from mark_first(work, item)):
        return None
    opening = begin(work, item)
    try:
        changed = yield opening
    except errors.LockBusy as busy:
        yield Rollback()
        yield from withdraw(work, item)
        item.outcome = Outcome(Status.IN_FLIGHT, error=busy, delay_seconds=BUSY_DELAY_SECONDS)
        return None
    return Opened(opening.token, changed == 1)


def closing(work: Work, item: Item) -> tuple[Call, ...]:
    """What is written together with COMMIT: the result, and the marker's withdrawal."""
    calls: tuple[Call, ...] = ()
    if item.result is not None:
        body = encode_result(item.result)
        item.result = decode_result(body)
        if item.observed is None:  # else what is kept is the first delivery's
            calls = (work.keyed(work.queries.keep_result, item, body=body),)
    if work.keeps:
        calls += keeping(work, (item,))
    if item.publications or item.sendings:
        calls += outgoing_calls(work, [item])
    if item.marked:
        calls += (work.withdraw(),)
    return calls


def already_known(work: Work, item: Item, token: str) -> Op[bool]:
    """Name the outcome of a delivery whose key is taken, and end. False when the row has gone meanwhile."""
    known = yield from look_up(work, item)
    yield from end_known(work, item, token, known)
    return known is not None


def look_up(work: Work, item: Item) -> Op[Outcome | Verdict | None]:
    """What the ledger says about a delivery whose key is taken; None when the row has gone meanwhile."""
    rows = yield Fetch(work.keyed(work.queries.lookup_one, item))
    known = known_outcome(work, item, tuple(rows[0])) if rows else None
    if isinstance(known, Verdict) and not (yield from holds(work, item, rows[0])):
        return None
    return known


def end_known(work: Work, item: Item, token: str, known: Outcome | Verdict | None) -> Op[None]:
    """End the transaction in which a key was found taken, with what is still to be buried."""
    if isinstance(known, Verdict):
        yield Commit(token, (bury(work, item, known.reason, known.error, 0),))
        item.outcome = known.outcome
    else:
        yield Rollback()
        item.outcome = known
    yield from withdraw(work, item)


def observed(work: Work, item: Item) -> Op[bool]:
    """Whether a known key is to run all the same, because the consumer only observes; `item.observed` says
    what it would have been. What waits in the queue runs from there, and what is given up stays so."""
    item.observed = None
    found = yield from look_up(work, item)
    if found is None or item.refusal is not None:
        return False
    if isinstance(found, Verdict):
        item.observed = OBSERVED[Status.DEAD] if found.reason == Reason.CONFLICT else None
    elif found.status is Status.DUPLICATE:
        item.observed = OBSERVED[Status.DUPLICATE]
    return item.observed is not None


def refuse(work: Work, item: Item, token: str) -> Op[None]:
    """No handler can have this one: keep it among the dead, claimed, and ack it."""
    assert item.refusal is not None
    reason, error = item.refusal
    yield Commit(token, (bury(work, item, reason, error, 0),))
    item.outcome = Outcome(Status.DEAD, error=error, reason=reason)


def is_done(work: Work, item: Item) -> Op[bool]:
    """Whether the item's commit went through although its reply did not say so."""
    rows = yield Fetch(work.keyed(work.queries.lookup_one, item))
    return bool(rows)


def fail(work: Work, item: Item, error: BaseException) -> Op[None]:
    """Record a failure whose effects are rolled back already, and decide what becomes of the message."""
    token = work.token()
    lanes = lanes_of([item])
    held = (enter(work, [item])[1], lock(work.queries, work.consumer, lanes)) if lanes else ()
    spilled = False
    again = Outcome(Status.RETRY, error=error, delay_seconds=BUSY_DELAY_SECONDS)
    try:
        changed = yield Begin(token, (*held, record_attempt(work, item, error)))
        for _ in range(RERUNS_MAX):
            if changed:
                break
            changed = yield Execute((record_attempt(work, item, error),))
        rows = yield Fetch(work.keyed(work.queries.count_attempts, item))
        if item.refusal is not None:  # never to the queue: what waits there is run
            verdict = Verdict(Fate.DEAD, item.refusal[1], item.refusal[0])
        else:
            verdict = judge(error, rows[0][0], work.policy, work.jitter)
        calls: tuple[Call, ...] = (work.withdraw(),) if item.marked else ()
        if verdict.fate is not Fate.RETRY:
            state = STATE_DISCARDED if verdict.fate is Fate.DISCARDED else 0
            changed = yield Execute((claiming(work, item, token, state=state),))
            if not changed and item.observed is not None:
                # It has had its effect; that it failed this time is on record.
                yield Commit(token, calls)
                item.marked = False
                item.outcome = Outcome(item.observed, error=error)
                return
            if not changed:
                # Another delivery of it came through meanwhile; that one's outcome stands.
                known = yield from look_up(work, item)
                yield Rollback()
                yield from withdraw(work, item)
                item.outcome = known if isinstance(known, Outcome) else again
                return
            if verdict.fate is Fate.DEAD:
                calls += (bury(work, item, verdict.reason, verdict.error, rows[0][0] + rows[0][1]),)
            calls = leave(work, calls, *(((), [item]) if verdict.fate is Fate.DEAD else ([item], ())))
        elif work.spills and (yield Fetch(rows_to_store(work, [item]))):
            calls += spilling(work, item, rows[0][0], verdict.delay_seconds)
            spilled = True
        yield Commit(token, calls)
    except BaseException as lost:
        if not isinstance(lost, GeneratorExit):
            yield Rollback()
        if isinstance(lost, (errors.Conflict, errors.LockBusy)):
            yield from withdraw(work, item)
            item.outcome = again
            return
        raise
    item.marked = False
    item.outcome = Outcome(Status.STORED, error=error) if spilled else verdict.outcome


def spilling(work: Work, item: Item, attempts: int, seconds: float) -> tuple[Call, ...]:
    """An item that was just stored is the queue's from now on: due again after its backoff."""
    lanes = lanes_of([item])
    spill = work.keyed(work.queries.spill, item, attempts=attempts, turn=not lanes, seconds=seconds)
    return (spill, *(advance_those(work, lanes) if lanes else ()))


def vouch(work: Work, items: list[Item]) -> Op[None]:
    """Before any ack of lazily committed work: flush, and count the rows that were vouched for.

    Commits are ordered in the log, so the last processed row stands for those before it; a
    duplicate's row may be another worker's, so each is counted.
    """
    processed = [
        item for item in items if item.outcome is not None and item.outcome.status is Status.PROCESSED
    ]
    wanted = {_key(work, item) for item in processed[-1:]}
    wanted |= {_key(work, item) for item in items if _is_known(item)}
    if not wanted:
        return
    count = yield Flush(tuple(sorted(wanted)))
    if count < len(wanted):
        raise errors.DatabaseUnavailable(
            "the database lost commits that were not on disk yet; nothing of this group is acked"
        )


def _is_known(item: Item) -> bool:
    return item.outcome is not None and item.outcome.status not in (
        Status.PROCESSED,
        Status.RETRY,
        Status.IN_FLIGHT,
    )


def _key(work: Work, item: Item) -> tuple[str, str, str]:
    return (work.consumer, item.message.source, item.message.id)
