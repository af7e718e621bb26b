"""Deaths: what a worker that fell silent had in hand is counted, once, before anybody runs it again."""

from __future__ import annotations

import msgspec

from oncebox import errors
from oncebox.core.failure import record_attempt
from oncebox.core.steps import Begin, Call, Commit, Execute, Fetch, Op, Rollback
from oncebox.core.work import Item, Work
from oncebox.message import Message


def reap_lapsed(work: Work, lapse_seconds: float) -> Op[int]:
    """Reap every worker whose heartbeat has lapsed by the database's clock. Returns how many."""
    rows = yield Fetch(work.call(work.queries.lapsed, seconds=lapse_seconds))
    reaped = 0
    for (worker,) in [tuple(row) for row in rows]:
        reaped += yield from reap(work, str(worker), lapse_seconds)
    orphans = yield Fetch(work.call(work.queries.orphans, seconds=lapse_seconds))
    for (worker,) in [tuple(row) for row in orphans]:
        reaped += yield from reap(work, str(worker), lapse_seconds, orphan=True)
    return reaped


def reap(work: Work, worker: str, lapse_seconds: float, *, orphan: bool = False) -> Op[int]:
    """Count one worker's death. Whoever deletes its row counts; everybody else does nothing."""
    token = work.token()
    try:
        changed = yield Begin(token, (work.call(work.queries.reap, id=worker, seconds=lapse_seconds),))
        if not changed and not orphan:
            yield Rollback()
            return 0
        hands = yield Fetch(work.call(work.queries.reap_hands, id=worker))
        calls: tuple[Call, ...] = ()
        seqs: list[int] = []
        for consumer, held, source, message_id in [tuple(hand) for hand in hands]:
            seqs += msgspec.json.decode(held) if isinstance(held, str) else held
            if message_id is not None:
                item = Item(Message(id=message_id, source=source or ""), b"")
                error = errors.ProcessDied("the process died with this message in hand")
                call = record_attempt(work, item, error, died=True)
                calls += (Call(call.query, {**call.params, "consumer": consumer, "worker": worker}),)
        if seqs:
            seqs.sort()
            yield Execute((work.call(work.queries.suspect, seqs=seqs),))
            calls += (work.call(work.queries.record_deaths, seqs=seqs, worker=worker),)
        yield Commit(token, calls)
    except errors.LockBusy:
        # Somebody works on one of them right now; the row is still there to be reaped next time.
        yield Rollback()
        return 0
    except BaseException as lost:
        if not isinstance(lost, GeneratorExit):
            yield Rollback()
        raise
    return 1
