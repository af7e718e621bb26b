"""Messages that a process may have died of: how deaths are counted inline, and who runs alone.

A suspect was delivered before. It is marked before it runs, so that its next death is on record; once one is, it runs
alone in its process.
"""

from __future__ import annotations

from oncebox import errors
from oncebox.core.failure import bury
from oncebox.core.outcomes import Outcome, Reason, Status
from oncebox.core.steps import Call, Commit, Fetch, Op, Rollback, Side
from oncebox.core.work import Item, Work

BUSY_DELAY_SECONDS = 1.0
"""When to look again at a message that another worker has in hand."""
ALONE_DELAY_SECONDS = 5.0
"""When to look again at a message that has to run alone, while another one does."""


def is_suspect(item: Item) -> bool:
    """The broker has delivered it before: the process that had it may have died of it."""
    return item.message.deliveries > 1


def may_follow(item: Item) -> bool:
    """Whether its claim may travel with the commit before it: nothing else comes first."""
    return item.message.deliveries <= 1 and item.unrecorded is None


def may_start(
    work: Work, item: Item, token: str, before: tuple[Call, ...] = (), after: tuple[Call, ...] = ()
) -> Op[bool]:
    """Count the deaths a suspect has caused, and mark it before it runs; `before` and `after` go with its burial.

    A first start is not marked, which would cost every message a write; once one death is
    known, the broker's count tells that there was a first one too.
    """
    rows = yield Fetch(work.keyed(work.queries.count_attempts, item))
    failures, deaths = rows[0]
    recorded = deaths
    if deaths and item.message.deliveries - 1 > failures + deaths:
        deaths += 1
    item.attempts, item.deaths = failures, deaths
    # The first that is on record may have been another's doing, beside it; from then on it ran alone.
    if deaths >= work.policy.crash_limit and recorded >= min(2, work.policy.crash_limit):
        error = errors.ProcessDied(f"{deaths} processes died with this message in hand")
        grave = bury(work, item, Reason.CRASH_LOOP, error, failures + deaths)
        yield Commit(token, (*before, grave, *after))
        item.outcome = Outcome(Status.DEAD, error=error, reason=Reason.CRASH_LOOP)
        yield from withdraw(work, item)
        return False
    if deaths and not work.alone.enter(work):
        yield Rollback()
        yield from withdraw(work, item)
        item.outcome = Outcome(Status.IN_FLIGHT, delay_seconds=ALONE_DELAY_SECONDS)
        return False
    if work.marks_first or (yield from mark(work, item, recorded)):
        return True
    yield Rollback()
    return False


def mark_first(work: Work, item: Item) -> Op[bool]:
    """Where a suspect is marked before its transaction: mark it, unless it has to wait until it can be alone."""
    rows = yield Fetch(work.keyed(work.queries.count_attempts, item))
    if rows[0][1] and not work.alone.enter(work):
        item.outcome = Outcome(Status.IN_FLIGHT, delay_seconds=ALONE_DELAY_SECONDS)
        return False
    return (yield from mark(work, item, rows[0][1]))


def mark(work: Work, item: Item, deaths: int) -> Op[bool]:
    """Say, durably, that this worker is about to run the item, of which `deaths` are known.

    False, and nothing said, when another worker says so too (it lost its claim without withdrawing, so it is dead,
    or will be heard of soon), and when that one's death was counted since `deaths` was read: a message that a process
    died with runs alone, which was decided by that number.
    """
    was_marked, item.marked = item.marked, True  # before the reply, which may be lost
    identity = {"worker": work.worker, "slot": work.slot}
    if (yield Side(work.keyed(work.queries.mark_inline, item, **identity, deaths=deaths))):
        return True
    item.marked = was_marked  # by an earlier run of the same delivery
    yield from withdraw(work, item)
    item.outcome = Outcome(Status.IN_FLIGHT, delay_seconds=BUSY_DELAY_SECONDS)
    return False


def withdraw(work: Work, item: Item) -> Op[None]:
    """Take the marker back; a database that is gone has its say when the worker returns to it."""
    if item.marked:
        item.marked = False
        try:
            yield Side(work.withdraw())
        except errors.DatabaseError:
            return
