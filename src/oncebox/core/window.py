"""Messages that are older than what the ledger remembers: nobody can know whether they are new.

A message that says when it was made, and was made before something was received that is forgotten by now, may be
among the forgotten. It is kept for a person. Where nothing was forgotten since, a row that is missing shows that the
message is new, however old it is.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from oncebox import errors
from oncebox.core.outcomes import Reason
from oncebox.core.steps import Fetch, Op
from oncebox.core.work import Item, Work
from oncebox.identity.times import TIMED_LENGTHS, event_made_at, id_made_at

SKEW_SECONDS = 3600.0
"""How far a producer's clock may be ahead of the database's."""


def made_at(work: Work, item: Item) -> float | None:
    """When the message was made, as far as this consumer goes by it."""
    made = id_made_at(item.message.id)
    if made is None and work.policy.outside_window == "by_time":
        made = event_made_at(item.message)
    return made


def is_old(work: Work, item: Item) -> bool:
    """Whether the message was made before its consumer's window: then somebody has to look."""
    if work.window_seconds is None or item.message.replay:
        return False
    message_id = item.message.id
    if len(message_id) not in TIMED_LENGTHS and work.policy.outside_window != "by_time":
        return False  # what most ids can be told by
    made = made_at(work, item)
    return made is not None and made < time.time() - work.window_seconds


def look_back(work: Work, item: Item) -> Op[None]:
    """Refuse an old message that may have been forgotten."""
    made = made_at(work, item)
    if item.refusal is not None or made is None:
        return
    rows = yield Fetch(work.call(work.queries.forgotten, consumer=work.consumer))
    if rows and float(rows[0][0]) >= made - SKEW_SECONDS:
        when = datetime.fromtimestamp(made, UTC).isoformat(timespec="seconds")
        item.refusal = (
            Reason.OUTSIDE_WINDOW,
            errors.MessageError(
                f"consumer {work.consumer!r}: id {item.message.id!r} was made at {when}; what was received since then "
                "is forgotten, so nobody knows whether it was handled: look, then redrive or discard it"
            ),
        )
