"""What the ledger says about another delivery of a key that it knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncebox import errors
from oncebox.codec import decode_result
from oncebox.core.failure import (
    STATE_DISCARDED,
    STATE_STALE,
    STATE_SUPPRESSED,
    STATE_UNFINISHED,
    Fate,
    Verdict,
)
from oncebox.core.outcomes import Outcome, Reason, Status
from oncebox.core.steps import Fetch, Op
from oncebox.core.work import Item, Work


def known_outcome(work: Work, item: Item, row: tuple[Any, ...]) -> Outcome | Verdict:
    """What a ledger row says about another delivery of its key; a Verdict is still to be buried."""
    _, _, kind, fingerprint, state, lazy, queued, reason, body = row
    item.doubtful = bool(lazy)
    known = bytes(fingerprint)
    if known and item.fingerprint and known != item.fingerprint:
        error: errors.OnceboxError = errors.PayloadConflict(
            f"consumer {work.consumer!r}: id {item.message.id!r} is known with another "
            + (
                "payload; the type is the same"
                if kind == item.message.type
                else f"type or payload (known type {kind!r}, this one {item.message.type!r})"
            )
        )
        return Verdict(Fate.DEAD, error, Reason.CONFLICT)
    if state == STATE_UNFINISHED:
        error = errors.UnfinishedClaim(
            f"consumer {work.consumer!r}: an earlier block for id {item.message.id!r} failed and was committed "
            "all the same; look at its effects, then redrive or discard it"
        )
        return Verdict(Fate.DEAD, error, Reason.UNFINISHED)
    if reason is not None:
        return Outcome(Status.DEAD, reason=str(reason))
    if queued:
        return Outcome(Status.WAITING)
    status = {
        STATE_DISCARDED: Status.DISCARDED,
        STATE_STALE: Status.STALE,
        STATE_SUPPRESSED: Status.SUPPRESSED,
    }.get(state, Status.DUPLICATE)
    return Outcome(status, decode_result(bytes(body)) if body is not None else None)


def holds(work: Work, item: Item, row: Sequence[Any]) -> Op[bool]:
    """Whether a row that was looked at is still so, and stays so until the transaction ends. False: look again.

    To be asked before something is buried beside it: a person may take back or discard the claim meanwhile, and a
    grave without its ledger row, or beside one that says discarded, would contradict it.
    """
    rows = yield Fetch(work.keyed(work.queries.hold, item, fingerprint=bytes(row[3]), state=row[4]))
    return bool(rows)
