"""Several messages in one transaction, and what happens when one of them fails.

One savepoint, not one per message: when a handler fails, everything since the savepoint is undone
(row locks stay), the culprit is set aside, and what had succeeded runs again, which moves the
savepoint past it. So no handler runs more than twice for its neighbours' sake, however many fail; only
one that fails when it runs again, and not before, makes it once more.
Where messages have failed lately, the savepoint is also moved on every few messages, so that the next
failure undoes few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import isqrt

from oncebox import errors
from oncebox.codec import decode_result, encode_result
from oncebox.core.failure import Fate, Verdict, bury, judge, record_attempt
from oncebox.core.inline import spilling, vouch
from oncebox.core.keeping import keeping
from oncebox.core.known import holds, known_outcome
from oncebox.core.outcomes import Outcome, Status, processed
from oncebox.core.outgoing import outgoing_calls
from oncebox.core.steps import (
    Begin,
    Call,
    Commit,
    Execute,
    Fetch,
    Handle,
    Op,
    Restore,
    Rollback,
    Save,
    Settle,
)
from oncebox.core.storing import rows_to_store
from oncebox.core.work import Item, Work

LOCK_MS = 30
"""How long a batch waits for a row that another batch holds before both try with half as many."""


CHAINED_SECONDS = 0.25
"""For how long one batch's COMMIT opens the next one's transaction: who stops a worker waits for its turn to end."""
WARY_BATCHES = 20
"""How many batches without a failure it takes to expect none."""


class Run:
    """What came of a batch: done, failed with the error, and not started within the time bound."""

    def __init__(self) -> None:
        self.done: list[Item] = []
        self.failed: list[tuple[Item, Exception]] = []
        self.left: list[Item] = []


def handle_all(work: Work, items: Sequence[Item], *, hurried: bool = False) -> Op[Run]:
    """Run the items' handlers in arrival order inside the open transaction, setting culprits aside. `hurried`: it
    waits for locks no longer than batches do, however few they are."""
    hurried = hurried or len(items) > 1
    run = Run()
    units: deque[tuple[Item, ...]] = deque(segments(items))
    since: list[tuple[Item, ...]] = []
    again = 0
    saved = len(items) > 1
    if saved:
        yield Save()
    started = work.monotonic()
    # Moving it costs a round trip, a failure undoes half of what is between two on average.
    stride = isqrt(2 * len(items)) if work.wary else len(items)
    while units:
        if run.done and not again and work.monotonic() - started > work.policy.batch_seconds:
            run.left = [item for unit in units for item in unit]
            break
        unit = units.popleft()
        try:
            result = yield Handle(unit)
            if (handler := unit[0].handler) is not None and handler.batch:
                keep(unit, result)
            else:
                unit[0].result = result
        except Exception as error:
            if isinstance(error, (errors.DatabaseUnavailable, errors.Conflict)) or is_busy(error, hurried):
                raise
            if not saved or isinstance(error, errors.TransactionEnded):
                # Whoever ended the transaction may have written past it: it must not run again, behave, and
                # pass for done.
                run.failed = [(item, error) for item in unit]
                raise Undo(run) from error
            if len(unit) == 1:
                run.failed.append((unit[0], error))
            work.wary = WARY_BATCHES
            yield Restore()
            # A list handler does not say which message it failed on: each runs alone.
            alone = [(item,) for item in unit] if len(unit) > 1 else []
            units.extendleft(reversed([*since, *alone]))
            run.done = run.done[: len(run.done) - sum(map(len, since))]
            again, since = len(since), []
            continue
        since.append(unit)
        run.done.extend(unit)
        if again:
            again -= 1
            moves = not again
        else:
            moves = len(since) >= stride
        if moves and units:
            yield Save(again=True)
            since = []
    if not run.failed:
        work.wary = max(0, work.wary - 1)
    return run


class Undo(Exception):
    """Those that failed took their transaction with them: roll back, then record."""

    def __init__(self, run: Run) -> None:
        self.run = run


def is_lost(error: BaseException) -> bool:
    """The database is gone, or somebody wants this worker to end: nobody's failure, and nothing more to ask."""
    return not isinstance(error, Exception) or isinstance(error, errors.DatabaseUnavailable)


def is_busy(error: BaseException, hurried: bool) -> bool:
    """A lock timeout in a hurry is batches' getting into each other's way; with all its time it is a failure."""
    return hurried and isinstance(error, errors.LockBusy)


def segments(items: Sequence[Item]) -> list[tuple[Item, ...]]:
    """Neighbours of one list handler go together; everything else goes alone, in arrival order."""
    units: list[tuple[Item, ...]] = []
    for item in items:
        together = item.handler is not None and item.handler.batch
        if together and units and units[-1][0].handler is item.handler:
            units[-1] += (item,)
        else:
            units.append((item,))
    return units


def keep(unit: tuple[Item, ...], result: object) -> None:
    """Give each item its result: a list handler returns one per message, or nothing."""
    handler = unit[0].handler
    if result is None:
        result = [None] * len(unit)
    if not isinstance(result, (list, tuple)) or len(result) != len(unit):
        raise errors.HandlerError(
            f"batch handler {handler.name} returns one result per message ({len(unit)}), or None"
        )
    for item, value in zip(unit, result, strict=True):
        item.result = value


def results(work: Work, items: Sequence[Item]) -> tuple[Call, ...]:
    """The rows of what the handlers returned, and of what they send."""
    calls: list[Call] = []
    for item in items:
        if item.result is not None:
            body = encode_result(item.result)
            item.result = decode_result(body)
            calls.append(work.keyed(work.queries.keep_result, item, body=body))
    return (*calls, *keeping(work, items), *outgoing_calls(work, items))


def inline_batch(
    work: Work,
    items: Sequence[Item],
    opened: str | None = None,
    goes_on: Callable[[], bool] = lambda: False,
) -> Op[tuple[list[Item], str | None]]:
    """Claim, handle and commit several deliveries in one transaction, then settle them: in the one that is open
    under the token `opened`, or in a new one.

    Returns items that were not dealt with: out of time, or in another batch's way. They hold no
    claim and are to be tried again. Returns also the token of the transaction that the commit has opened,
    if `goes_on` says that there is more. DatabaseUnavailable and cancellation leave rolled back.
    """
    now, later = distinct(items)
    token = opened or work.token()
    then: Begin | None = None
    try:
        if opened is None:
            yield _opening(token, len(now))
        rows = yield Fetch(_claims(work, now))
        fresh, known = now, []
        if len(rows) < len(now):
            claimed = {(row[0], row[1]) for row in rows}
            fresh = [item for item in now if (item.message.source, item.message.id) in claimed]
            known = [item for item in now if (item.message.source, item.message.id) not in claimed]
        calls = yield from _known(work, known, later)
        run = yield from handle_all(work, fresh, hurried=len(now) > 1)
        calls += results(work, run.done)
        for item, error in run.failed:
            calls += yield from _charge(work, item, error)
        calls += tuple(work.keyed(work.queries.unclaim, item) for item in run.left)
        # What is doubtful is flushed before it is settled, which must not be inside the next transaction.
        if not (run.failed or run.left or later or any(item.doubtful for item in known)) and goes_on():
            then = _opening(work.token(), work.limit)
        yield Commit(token, calls, then)
    except BaseException as error:
        if isinstance(error, GeneratorExit):
            raise
        yield Rollback()
        # If the commit went through, and what failed is what it was to open, their claims say so next time.
        return once_more(work, items, error), None
    for item in run.done:
        item.outcome = processed(item.result)
    work.succeeded()
    settled = [item for item in items if item.outcome is not None]
    doubtful = [item for item in settled if item.doubtful]
    if doubtful:
        yield from vouch(work, doubtful)
    if settled:
        yield Settle(settled)
    return [item for item in items if item.outcome is None], None if then is None else then.token


def _opening(token: str, size: int) -> Begin:
    return Begin(token, lock_ms=LOCK_MS if size > 1 else 0)


def once_more(work: Work, items: Sequence[Item], error: BaseException) -> list[Item]:
    """After the rollback of many: all of them, to be tried again, in smaller batches where no culprit is known.
    Lets DatabaseUnavailable and cancellation out."""
    for item in items:
        item.outcome = None
    if is_lost(error):
        if len(items) > 1 and isinstance(error, errors.DatabaseUnavailable):
            # Alone, a handler that loses its connection again and again is told from its neighbours.
            work.limit = 1
        raise error
    if isinstance(error, Undo):
        for item, cause in error.run.failed:
            item.unrecorded = cause
    elif isinstance(error, (errors.Conflict, errors.LockBusy)):
        work.conflicted()
    else:
        work.limit = 1
    return list(items)


def distinct(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Refused ones and second deliveries of a key wait for a transaction of their own."""
    seen: set[tuple[str, str]] = set()
    now: list[Item] = []
    later: list[Item] = []
    for item in items:
        key = (item.message.source, item.message.id)
        (later if key in seen or item.refusal is not None else now).append(item)
        seen.add(key)
    return now, later


def _claims(work: Work, items: Sequence[Item]) -> Call:
    return work.call(
        work.queries.claim_many,
        consumer=work.consumer,
        rows=[
            {
                "source": item.message.source,
                "message_id": item.message.id,
                "type": item.message.type,
                "fingerprint": item.fingerprint,
            }
            for item in items
        ],
    )


def _known(work: Work, known: list[Item], later: list[Item]) -> Op[tuple[Call, ...]]:
    """Name the outcomes of those whose key is taken; conflicts are buried with this commit."""
    if not known:
        return ()
    rows = yield Fetch(
        work.call(
            work.queries.lookup,
            consumer=work.consumer,
            rows=[{"source": item.message.source, "message_id": item.message.id} for item in known],
        )
    )
    found = {(row[0], row[1]): tuple(row) for row in rows}
    calls: tuple[Call, ...] = ()
    for item in known:
        row = found.get((item.message.source, item.message.id))
        if row is None:
            later.append(item)  # its row went away meanwhile: tried again, never "new"
            continue
        outcome = known_outcome(work, item, row)
        if isinstance(outcome, Verdict):
            if not (yield from holds(work, item, row)):
                later.append(item)
                continue
            calls += (bury(work, item, outcome.reason, outcome.error, 0),)
            outcome = outcome.outcome
        item.outcome = outcome
    return calls


def _charge(work: Work, item: Item, error: BaseException) -> Op[tuple[Call, ...]]:
    """Record a culprit in the transaction its neighbours commit."""
    rows = yield Fetch(work.keyed(work.queries.count_attempts, item))
    verdict = judge(error, rows[0][0] + 1, work.policy, work.jitter)
    item.outcome = verdict.outcome
    calls: tuple[Call, ...] = (record_attempt(work, item, error),)
    if verdict.fate is Fate.RETRY and work.spills:
        yield Execute((work.keyed(work.queries.unclaim, item),))
        if (yield Fetch(rows_to_store(work, [item]))):
            item.outcome = Outcome(Status.STORED, error=error)
            return (*calls, *spilling(work, item, rows[0][0] + 1, verdict.delay_seconds))
    if verdict.fate is Fate.RETRY:
        return (*calls, work.keyed(work.queries.unclaim, item))
    if verdict.fate is Fate.DISCARDED:
        return (*calls, work.keyed(work.queries.set_state, item, state=2))
    return (*calls, bury(work, item, verdict.reason, error, rows[0][0] + 1))
