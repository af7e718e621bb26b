"""What a person decides about claims that the guard left unfinished: let the next delivery run, or let them go.

A guarded block raised, and its transaction was committed all the same. The ledger knows the id, and nothing else is
kept here: to run again, the message has to be delivered again.
"""

from __future__ import annotations

from typing import Any

from oncebox.core.audit import Act, Touched, audit
from oncebox.core.dead import BATCH, COUNT_MAX, LIST_MAX, Choice, Count, DeadLetter, Decision, dead_letters
from oncebox.core.outcomes import Reason
from oncebox.core.queries import Queries
from oncebox.core.steps import Begin, Call, Commit, Fetch, Op, Rollback
from oncebox.core.work import new_token

FREE = "free: its next delivery is the first"
"""What the audit says of a claim that was taken back."""


def all_dead(queries: Queries, choice: Choice) -> Op[list[DeadLetter]]:
    """Everything that waits for somebody's decision: dead messages, then claims."""
    letters = yield from dead_letters(queries, choice)
    claims = yield from unfinished_claims(queries, choice, LIST_MAX)
    return [*letters, *claims]


def unfinished_claims(
    queries: Queries, choice: Choice, limit: int, *, lock: bool = False
) -> Op[list[DeadLetter]]:
    """The chosen ones that are not among the dead themselves; `lock` leaves out what somebody else has in hand now, and
    what another payload of the same id lies beside: that has to be settled first."""
    params = _params(choice, limit)
    if params is None:
        return []
    rows = yield Fetch(Call(queries.unfinished_choose if lock else queries.unfinished_list, params))
    return [
        DeadLetter(
            consumer=row[0], source=row[1], id=row[2], fingerprint=bytes(row[3]), type=row[4], key=None,
            reason=Reason.UNFINISHED, error_type="", error="", attempts=0, age_seconds=float(row[5]),
            dead_seconds=float(row[5]), is_conflict=False, is_kept=False, is_claim=True,
        )
        for row in rows
    ]  # fmt: skip


def count_claims(queries: Queries, choice: Choice) -> Op[list[Count]]:
    """How many a bulk change would touch, by consumer and type."""
    params = _params(choice, COUNT_MAX)
    rows = (yield Fetch(Call(queries.unfinished_count, params))) if params is not None else ()
    return [Count(consumer=row[0], reason=Reason.UNFINISHED, type=row[1], count=int(row[2])) for row in rows]


def decide_claims(queries: Queries, decision: Decision, choice: Choice, act: Act) -> Op[list[DeadLetter]]:
    """Take back or discard up to `BATCH` of the chosen ones, in one transaction with their audit rows.

    One that was taken back is known no more: its next delivery is the first. A discarded one never runs. Conflicts with
    one are settled first.
    Returns what was changed; none when nothing is left.
    """
    token = new_token()
    try:
        yield Begin(token)
        found = yield from unfinished_claims(queries, choice, BATCH, lock=True)
        if not found:
            yield Rollback()
            return []
        rows = [{"consumer": each.consumer, "source": each.source, "message_id": each.id} for each in found]
        again = decision == "redrive"
        change = queries.unfinished_drop if again else queries.unfinished_discard
        changed = {tuple(row) for row in (yield Fetch(Call(change, {"rows": rows})))}
        # Another delivery may have been buried since: then it is among the dead, and no claim any more.
        found = [each for each in found if (each.consumer, each.source, each.id) in changed]
        if not found:
            yield Rollback()
            return (yield from decide_claims(queries, decision, choice, act))
        result = FREE if again else "discarded"
        touched = [
            Touched(consumer=claim.consumer, source=claim.source, id=claim.id, result=result)
            for claim in found
        ]
        yield Commit(token, (audit(queries, act, touched),))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    return found


def _params(choice: Choice, limit: int) -> dict[str, Any] | None:
    """As the queries want it; None where no claim can be meant, which has neither key nor error."""
    if (
        choice.reason not in (None, Reason.UNFINISHED)
        or choice.error_type is not None
        or choice.key is not None
    ):
        return None
    words = ("consumer", "source", "type", "older_seconds", "newer_seconds")
    return {
        **{word: getattr(choice, word) for word in words},
        "ids": list(choice.ids) or None,
        "limit": limit,
    }
