"""What a person decides about outgoing messages that were given up: try again, or let go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from oncebox.core.audit import Act, Touched, audit
from oncebox.core.queries import Queries
from oncebox.core.steps import Begin, Call, Commit, Fetch, Op, Rollback
from oncebox.core.work import new_token

LIST_MAX = 1000
BATCH = 500
"""Messages that one transaction of a bulk change holds."""
COUNT_MAX = 1_000_000

Decision = Literal["retry", "discard"]


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """An outgoing message that is not tried again by itself."""

    seq: int
    id: str
    source: str
    type: str
    topic: str | None
    key: str | None
    attempts: int
    error: str
    age_seconds: float
    parked_seconds: float


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which of them are meant: these ids, or all of a type and source."""

    ids: tuple[str, ...] = ()
    type: str | None = None
    source: str | None = None


EVERY = Choice()


def parked(queries: Queries, choice: Choice = EVERY, limit: int = LIST_MAX) -> Op[list[Parked]]:
    """The chosen ones, in the order they were published."""
    params = {"ids": list(choice.ids) or None, "type": choice.type, "source": choice.source, "limit": limit}
    rows = yield Fetch(Call(queries.outbox_parked, params))
    return [
        Parked(
            seq=row[0], id=row[1], source=row[2], type=row[3], topic=row[4], key=row[5], attempts=row[6],
            error=row[7], age_seconds=float(row[8]), parked_seconds=float(row[9]),
        )
        for row in rows
    ]  # fmt: skip


def count_parked(queries: Queries, choice: Choice) -> Op[int]:
    """How many a bulk change would touch; stops at `COUNT_MAX`."""
    params = {"type": choice.type, "source": choice.source, "limit": COUNT_MAX}
    rows = yield Fetch(Call(queries.outbox_parked_count, params))
    return int(rows[0][0])


def decide(queries: Queries, decision: Decision, choice: Choice, act: Act) -> Op[list[Parked]]:
    """Retry or discard up to `BATCH` of the chosen ones, with their audit rows, in one transaction.

    Returns those that were changed, none when nothing is left; what a relay or another person has dealt
    with meanwhile is left out.
    """
    token = new_token()
    try:
        yield Begin(token)
        found = yield from parked(queries, choice, BATCH)
        changed = (yield from _change(queries, decision, [each.seq for each in found])) if found else set()
        done = [each for each in found if each.seq in changed]
        if not done:
            yield Rollback()
            return []
        result = "waiting" if decision == "retry" else "discarded"
        touched = [Touched(source=each.source, id=each.id, result=result) for each in done]
        yield Commit(token, (audit(queries, act, touched),))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    return done


def _change(queries: Queries, decision: Decision, seqs: Sequence[int]) -> Op[set[int]]:
    query = queries.outbox_retry if decision == "retry" else queries.outbox_discard
    rows = yield Fetch(Call(query, {"seqs": list(seqs)}))
    if decision == "retry":
        yield Fetch(Call(queries.ring, {}))
    return {row[0] for row in rows}
