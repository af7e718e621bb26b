"""How a delivery can end, and the one answer the broker gets for each ending."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Status(StrEnum):
    """The outcome of one delivery."""

    PROCESSED = "processed"
    DUPLICATE = "duplicate"
    STORED = "stored"
    RETRY = "retry"
    DEAD = "dead"
    STALE = "stale"
    WAITING = "waiting"
    IN_FLIGHT = "in_flight"
    DISCARDED = "discarded"
    SUPPRESSED = "suppressed"
    OBSERVED_DUPLICATE = "observed_duplicate"
    OBSERVED_CONFLICT = "observed_conflict"


class Answer(StrEnum):
    """What the broker is told."""

    ACK = "ack"
    NACK = "nack"
    NONE = "none"


ANSWERS: dict[Status, Answer] = {
    Status.PROCESSED: Answer.ACK,
    Status.DUPLICATE: Answer.ACK,
    Status.STORED: Answer.ACK,
    Status.RETRY: Answer.NACK,
    Status.DEAD: Answer.ACK,
    Status.STALE: Answer.ACK,
    Status.WAITING: Answer.ACK,
    Status.IN_FLIGHT: Answer.NACK,
    Status.DISCARDED: Answer.ACK,
    Status.SUPPRESSED: Answer.ACK,
    Status.OBSERVED_DUPLICATE: Answer.ACK,
    Status.OBSERVED_CONFLICT: Answer.ACK,
}
"""An ack needs a durable row that says why (I2); what has none is delivered again."""


OBSERVED: dict[Status, Status] = {
    Status.DUPLICATE: Status.OBSERVED_DUPLICATE,
    Status.DEAD: Status.OBSERVED_CONFLICT,
}
"""What a consumer that only observes calls a delivery that it would have suppressed."""


class Reason(StrEnum):
    """Why a message is dead."""

    EXHAUSTED = "exhausted"
    TERMINAL = "terminal"
    UNDECODABLE = "undecodable"
    UNKNOWN_TYPE = "unknown type"
    CRASH_LOOP = "crash loop"
    CONFLICT = "conflict"
    GAP = "gap"
    UNFINISHED = "unfinished"
    NO_IDENTITY = "no identity"
    NO_PLACE = "no place"
    TOO_LARGE = "too large"
    UNKNOWN_EFFECT = "unknown effect"
    OUTSIDE_WINDOW = "outside window"


class Outcome(msgspec.Struct, frozen=True):
    """How one delivery ended: its status, the handler's result, and the error that decided it.

    `result` is what the first delivery returned, for it and for every duplicate alike.
    `delay_seconds` is set for `retry` and `in_flight`.
    """

    status: Status
    result: Any = None
    error: BaseException | None = None
    reason: str = ""
    delay_seconds: float = 0.0

    @property
    def answer(self) -> Answer:
        """The broker's answer for this outcome."""
        return ANSWERS[self.status]


DONE = Outcome(Status.PROCESSED)
KEPT = Outcome(Status.STORED)
"""What nearly all messages end with. Shared: an outcome may lead to an error and its frames, so that the collector
has to look at each."""


def processed(result: Any) -> Outcome:
    """Done, with what the handler returned; most return nothing."""
    return DONE if result is None else Outcome(Status.PROCESSED, result)
