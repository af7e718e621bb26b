"""Receiving into the queue: ledger row and queue row in one transaction, then the ack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncebox.core.batch import distinct
from oncebox.core.failure import (
    Verdict,
    bury,
)
from oncebox.core.inline import claiming, vouch
from oncebox.core.known import holds, known_outcome
from oncebox.core.lanes import advance_those, block, enter, lanes_from, lock, starts
from oncebox.core.outcomes import KEPT, Outcome, Status
from oncebox.core.steps import (
    Begin,
    Call,
    Commit,
    Execute,
    Fetch,
    Op,
    Rollback,
    Settle,
)
from oncebox.core.storing import rows_to_store
from oncebox.core.window import is_old, look_back
from oncebox.core.work import Item, Work


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
    if settled:
        yield Settle(settled)
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
    known: list[Item] = []
    are_all_new = len(rows) == len(items)
    stored = set() if are_all_new else {(row[0], row[1]) for row in rows}
    for item in items:
        if item.outcome is not None:
            continue
        if are_all_new or (item.message.source, item.message.id) in stored:
            item.outcome = KEPT
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
    graves: list[tuple[Item, Verdict, tuple[Any, ...]]] = []
    for item in items:
        row = found.get((item.message.source, item.message.id))
        if row is None:
            continue  # gone meanwhile: left without an outcome, so it is stored again
        outcome = known_outcome(work, item, row)
        if isinstance(outcome, Verdict):
            graves.append((item, outcome, row))
        else:
            item.outcome = outcome
    if graves:
        yield from _bury(work, graves)


def _bury(work: Work, graves: list[tuple[Item, Verdict, tuple[Any, ...]]]) -> Op[None]:
    """Bury those whose ledger row is still as it was looked at; the others are left without an outcome."""
    token = work.token()
    held: list[tuple[Item, Verdict]] = []
    try:
        yield Begin(token)
        for item, verdict, row in sorted(graves, key=lambda grave: grave[2][:2]):
            if (yield from holds(work, item, row)):
                held.append((item, verdict))
        yield Commit(token, tuple(bury(work, item, str(v.reason), v.error, 0) for item, v in held))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    for item, verdict in held:
        item.outcome = verdict.outcome


def receive_refused(work: Work, item: Item) -> Op[None]:
    """Nobody can handle it, ever: claimed and buried at once."""
    assert item.refusal is not None
    reason, error = item.refusal
    token = work.token()
    # By sequence its version is missing, like one that never came; by arrival nothing else says so.
    blocks = item.lane is not None and item.version is None and work.policy.on_dead == "block"
    held: tuple[Call, ...] = ()
    if blocks:
        keys, touching = enter(work, [item])
        held = (touching, lock(work.queries, work.consumer, keys))
    try:
        changed = yield Begin(token, (*held, claiming(work, item, token)), carried=not held)
        if changed:
            after = (block(work, item),) if blocks else ()
            yield Commit(token, (bury(work, item, reason, error, 0), *after))
            item.outcome = Outcome(Status.DEAD, error=error, reason=reason)
            return
        yield Rollback()
    except BaseException as lost:
        if not isinstance(lost, GeneratorExit):
            yield Rollback()
        raise
    yield from _already_known(work, [item])


def write(work: Work, calls: tuple[Call, ...]) -> Op[None]:
    """A small transaction of our own."""
    token = work.token()
    try:
        yield Begin(token)
        yield Commit(token, calls)
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
