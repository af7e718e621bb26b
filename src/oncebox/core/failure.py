"""What becomes of a message whose handler failed: judged in one place, recorded the same everywhere."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from enum import Enum, auto

import msgspec

from oncebox import errors
from oncebox.codec import describe_error, pack_headers, pack_provenance
from oncebox.core.outcomes import Outcome, Reason, Status
from oncebox.core.steps import Call
from oncebox.core.work import Item, Work
from oncebox.policy import Policy

DELAY_MAX_SECONDS = 30 * 86_400.0
"""The longest a retry can be put off; what is asked for beyond that is cut."""
RERUNS_MAX = 10
"""Deadlocks and serialization failures run again this often before they count as a failure."""


class Fate(Enum):
    """The three ways a failure can end."""

    RETRY = auto()
    DEAD = auto()
    DISCARDED = auto()


class Verdict(msgspec.Struct, frozen=True):
    """What to do with a failed message, and why."""

    fate: Fate
    error: BaseException
    reason: str = ""
    delay_seconds: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """The delivery's outcome once the verdict is recorded."""
        status = {Fate.RETRY: Status.RETRY, Fate.DEAD: Status.DEAD, Fate.DISCARDED: Status.DISCARDED}[
            self.fate
        ]
        return Outcome(status, error=self.error, reason=self.reason, delay_seconds=self.delay_seconds)


def lost_too_often(item: Item) -> errors.DatabaseError:
    """The connection went away each time this message was handled; now it counts as a failure."""
    return errors.DatabaseError(
        f"the database connection was lost more than {RERUNS_MAX} times while id {item.message.id!r} was handled"
    )


def judge(error: BaseException, attempts: int, policy: Policy, jitter: random.Random) -> Verdict:
    """The verdict on a failure that was attempt number `attempts`."""
    if isinstance(error, errors.Discard):
        return Verdict(Fate.DISCARDED, error, error.reason)
    if isinstance(error, errors.UndecodablePayload):
        return Verdict(Fate.DEAD, error, Reason.UNDECODABLE)
    if isinstance(error, errors.Dead):
        return Verdict(Fate.DEAD, error, Reason.TERMINAL)
    terminal = isinstance(error, policy.terminal) or (
        isinstance(error, errors.OnceboxError) and not error.retryable
    )
    if terminal:
        return Verdict(Fate.DEAD, error, Reason.TERMINAL)
    if attempts >= policy.retry.attempts:
        return Verdict(Fate.DEAD, error, Reason.EXHAUSTED)
    delay = error.after_seconds if isinstance(error, errors.Retry) else None
    if delay is None or math.isnan(delay):
        delay = policy.retry.delay_seconds(attempts, jitter)
    delay = min(max(delay, 0.0), DELAY_MAX_SECONDS)
    return Verdict(Fate.RETRY, error, delay_seconds=delay)


def record_attempt(work: Work, item: Item, error: BaseException, *, died: bool = False) -> Call:
    """Keep what happened, without payload values."""
    text = describe_error(error)
    return work.keyed(
        work.queries.record_attempt,
        item,
        died=died,
        error_type=text.type,
        error=text.message,
        traceback=text.traceback,
        worker=work.worker,
    )


def bury(work: Work, item: Item, reason: str, error: BaseException, attempts: int) -> Call:
    """Put a message that is not in the queue among the dead, with all that is needed to redrive it."""
    message, text = item.message, describe_error(error)
    kept = work.policy.keep_payload != "never"
    return work.keyed(
        work.queries.bury,
        item,
        fingerprint=item.fingerprint,
        type=message.type,
        key=message.key,
        payload=item.payload if kept else b"",
        kept=kept,
        headers=pack_headers(message.headers),
        content_type=message.content_type,
        provenance=pack_provenance(message.provenance),
        reason=str(reason),
        error_type=text.type,
        error=text.message,
        traceback=text.traceback,
        attempts=attempts,
        lane=item.lane,
        version=item.version,
    )


def bury_queued(work: Work, item: Item, verdict: Verdict, *, charged: int = 1) -> tuple[Call, ...]:
    """Move a stored message from the queue to the dead."""
    text = describe_error(verdict.error)
    return (
        work.call(
            work.queries.bury_queued,
            seq=item.seq,
            reason=str(verdict.reason),
            error_type=text.type,
            error=text.message,
            traceback=text.traceback,
            charged=charged,
        ),
        work.call(work.queries.finish, seqs=[item.seq]),
    )


def charge_queued(work: Work, item: Item, error: BaseException) -> tuple[Verdict, tuple[Call, ...]]:
    """The verdict on a stored message, and what records it in the queue's own transaction."""
    verdict = judge(error, item.attempts + 1, work.policy, work.jitter)
    calls: tuple[Call, ...] = (record_attempt(work, item, error),)
    if verdict.fate is Fate.RETRY:
        calls += (work.call(work.queries.charge, seq=item.seq, seconds=verdict.delay_seconds),)
    elif verdict.fate is Fate.DEAD:
        calls += bury_queued(work, item, verdict)
    else:
        calls += (
            work.call(work.queries.finish, seqs=[item.seq]),
            work.keyed(work.queries.set_state, item, state=STATE_DISCARDED),
        )
    return verdict, calls


def leaving(done: Sequence[Item], verdicts: Sequence[tuple[Item, Verdict]]) -> tuple[list[Item], list[Item]]:
    """Who leaves the queue: those that are over, and the dead."""
    discarded = [item for item, verdict in verdicts if verdict.fate is Fate.DISCARDED]
    return [*done, *discarded], [item for item, verdict in verdicts if verdict.fate is Fate.DEAD]


STATE_UNFINISHED = 1
STATE_DISCARDED = 2
STATE_STALE = 3
STATE_SUPPRESSED = 4
