"""What the sender is told: one HTTP status per outcome of a delivery.

2xx means that the message is on record and need not be sent again. Everything else means that it is not,
or that sending the same again changes nothing, and then a person is needed on the sender's side.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from oncebox.core.outcomes import Outcome, Reason, Status

STATUSES: dict[Status, int] = {
    Status.PROCESSED: 200,
    Status.DUPLICATE: 200,
    Status.STORED: 202,
    Status.WAITING: 202,
    Status.DEAD: 200,
    Status.STALE: 200,
    Status.DISCARDED: 200,
    Status.SUPPRESSED: 200,
    Status.OBSERVED_DUPLICATE: 200,
    Status.OBSERVED_CONFLICT: 200,
    Status.IN_FLIGHT: 409,
    Status.RETRY: 503,
}
"""A dead message is kept here, with its reason, for us to look at: the sender is done."""

NAMELESS = frozenset({Reason.CONFLICT, Reason.NO_IDENTITY})
"""Dead, and kept, by a fault in what names the message: the sender gets 422, since only it can mend that."""

RETRY_MAX_SECONDS = 3600


class Answer:
    """A response."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self, status: int, document: dict[str, Any], headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        self.status = status
        self.body = json.dumps(document).encode()
        self.headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(self.body)),
            *((name.encode(), value.encode("latin-1", "replace")) for name, value in headers),
        ]


class Refusal(Exception):
    """The request gets no further; `answer` says why, without quoting anything of it."""

    def __init__(self, status: int, text: str, *headers: tuple[str, str]) -> None:
        super().__init__(text)
        self.answer = Answer(status, {"error": text}, headers)


def retry_after(seconds: float) -> tuple[str, str]:
    """The header; whole seconds, at least one."""
    return ("retry-after", str(min(RETRY_MAX_SECONDS, max(1, math.ceil(seconds)))))


def answer_one(message_id: str, outcome: Outcome) -> Answer:
    """The answer for a request that is one message."""
    return Answer(status_of(outcome), _entry(message_id, outcome), _headers([outcome]))


def answer_many(entries: Sequence[tuple[str, Outcome]]) -> Answer:
    """The answer for a batch: 2xx when every entry is on record; else all of it is to be sent again, and
    what was done is then a duplicate."""
    outcomes = [outcome for _, outcome in entries]
    statuses = [STATUSES[outcome.status] for outcome in outcomes]
    status = max(statuses, default=200)
    document = {"outcomes": [_entry(message_id, outcome) for message_id, outcome in entries]}
    return Answer(status, document, _headers(outcomes))


def status_of(outcome: Outcome) -> int:
    """The HTTP status of one outcome."""
    if outcome.status is Status.DEAD and outcome.reason in NAMELESS:
        return 422
    return STATUSES[outcome.status]


def _entry(message_id: str, outcome: Outcome) -> dict[str, Any]:
    entry = {"id": message_id, "outcome": str(outcome.status)}
    # A discarded message's reason is a handler's own words, and not for strangers.
    return {**entry, "reason": str(outcome.reason)} if outcome.status is Status.DEAD else entry


def _headers(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    delays = [outcome.delay_seconds for outcome in outcomes if STATUSES[outcome.status] >= 300]
    return [retry_after(max(delays))] if delays else []
