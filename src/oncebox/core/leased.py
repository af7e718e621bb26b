"""Handlers marked long: a lease instead of a row lock, with a token that fences a late finisher off."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from oncebox import errors
from oncebox.core.batch import results
from oncebox.core.failure import (
    Fate,
    Verdict,
    bury_queued,
    charge_queued,
    leaving,
    record_attempt,
)
from oncebox.core.lanes import leave
from oncebox.core.outcomes import Outcome, Reason, Status
from oncebox.core.steps import (
    Begin,
    Call,
    Commit,
    Fetch,
    Handle,
    Keep,
    Op,
    Rollback,
    Settle,
    Side,
)
from oncebox.core.stored import to_item
from oncebox.core.work import Item, Work


def work_long(work: Work) -> Op[int]:
    """A handler marked long: lease, commit, run in a transaction of its own, finish only by token."""
    item = yield from take_leased(work, work.long_types)
    if item is None:
        return 0
    if item.outcome is not None:
        yield Settle((item,))
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
    yield Settle((item,))
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
