"""External effects: a call that no transaction can undo.

`started` is durable before the call is made, the result after it. Found `started` after a crash, the
call is *unknown*: it may have happened. Policy says what then: call again with the same idempotency
key while the provider honours it, ask a hook, or leave it to a person. Never guess.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from oncebox import errors
from oncebox.codec import encode_result
from oncebox.core.batch import results
from oncebox.core.failure import Fate, Verdict, bury_queued, charge_queued, leaving, record_attempt
from oncebox.core.lanes import leave, unstick
from oncebox.core.leased import give_up, take_leased, undone
from oncebox.core.outcomes import Outcome, Reason, Status
from oncebox.core.steps import Ask, Begin, Commit, Execute, Fetch, Handle, Keep, Op, Rollback, Settle
from oncebox.core.unknown import is_unknown
from oncebox.core.work import Item, Work
from oncebox.identity import derived
from oncebox.message import MessageKey

OnUnknown = Literal["retry", "reconcile", "park"]
TWICE = "called twice"
"""The reason of an outcome whose call came back after another one had been recorded."""


class EffectPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about a call that may have happened."""

    on_unknown: OnUnknown = "park"
    key_ttl_seconds: float = 24 * 3600.0
    """How long the provider honours an idempotency key; an older unknown call is parked."""
    reconcile: Callable[..., Any] | None = None
    """Asked whether the call happened: a result (or True) if it did, None or False if it did not."""


class Call:
    """What an effect's handler is given beside its payload."""

    __slots__ = ("attempt", "consumer", "idempotency_key", "message")

    def __init__(self, consumer: str, message: Any, idempotency_key: str, attempt: int) -> None:
        self.consumer = consumer
        self.message = message
        self.idempotency_key = idempotency_key
        """The same for every call that this message ever leads to: give it to the provider."""
        self.attempt = attempt


def idempotency_key(work: Work, item: Item) -> str:
    """Derived from the message, so that no crash can lose it."""
    return derived(MessageKey(work.consumer, item.message.source, item.message.id), "effect")


def work_effect(work: Work) -> Op[int]:
    """Take one message, note the intent, make the call, note the result. Returns how many it dealt with."""
    item = yield from take_leased(work, work.effect_types)
    if item is None:
        return 0
    if item.outcome is None:
        try:
            yield Keep(item, True)
            yield from _decide(work, item)
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            yield from undone(work, item)
            yield from give_up(work, item)
            raise
        yield Keep(item, False)
    yield Settle((item,))
    return 1


def _decide(work: Work, item: Item) -> Op[None]:
    """Has it been started before? Then it is unknown, and policy decides; else make the call."""
    rows = yield Fetch(work.keyed(work.queries.effect_look, item))
    state = rows[0][3] if rows else ""
    if state == "done":
        yield from _known(work, item)
        return
    if state in ("started", "parked"):
        policy: EffectPolicy = item.handler.effect
        age_seconds = float(rows[0][6])
        if policy.on_unknown == "reconcile":
            if (yield from _reconcile(work, item)):
                return
        elif policy.on_unknown == "park" or age_seconds > policy.key_ttl_seconds:
            yield from _park(work, item, policy, age_seconds)
            return
    yield from _call(work, item)


def _known(work: Work, item: Item) -> Op[None]:
    """A late result settled it after it was taken: no call, and nothing left to do."""
    token = work.token()
    yield Begin(token)
    finish = work.call(work.queries.finish_leased, seq=item.seq, token=item.token)
    yield Commit(token, leave(work, (finish,), [item]))
    item.outcome = Outcome(Status.DUPLICATE)


def _call(work: Work, item: Item) -> Op[None]:
    """Intent, call, result: each step survives the crash of the next."""
    start = work.keyed(
        work.queries.effect_start,
        item,
        token=item.token,
        key=idempotency_key(work, item),
        request=item.message.payload,
    )
    token = work.token()
    yield Begin(token)
    yield Commit(token, (start,))
    try:
        item.result = yield Handle((item,))
    except Exception as error:
        yield from _failed(work, item, error, unknown=is_unknown(error))
        return
    note = "called"
    try:
        encode_result(item.result)
    except Exception as error:
        # It happened, and must not happen again because of what it returned.
        note = f"called; its result could not be kept ({type(error).__name__})"
        item.result = None
    yield from _finish(work, item, note)


def _finish(work: Work, item: Item, note: str) -> Op[None]:
    """Record the result. Without the lease it still settles what is unknown: the call did happen."""
    calls = results(work, [item])
    token = work.token()
    yield Begin(token)
    still = yield Fetch(work.call(work.queries.still_leased, seq=item.seq, token=item.token))
    if still:
        # Not by the token of the call: what was reconciled is an earlier call's row.
        settle = work.keyed(work.queries.effect_late, item, note=note)
        finish = work.call(work.queries.finish_leased, seq=item.seq, token=item.token)
        yield Commit(token, leave(work, (*calls, settle, finish), [item]))
        item.outcome = Outcome(Status.PROCESSED, item.result)
        return
    # Whatever became of the message meanwhile (queued again, parked, given back), it is done now.
    late = (
        work.call(work.queries.finish, seqs=[item.seq]),
        work.keyed(work.queries.unbury, item),
        work.keyed(work.queries.effect_late, item, note="settled by a late result"),
    )
    if (yield Execute(late)):
        yield Commit(token, (*calls, *unstick(work.queries, work.consumer, item.message, item.lane)))
        item.outcome = Outcome(Status.PROCESSED, item.result, reason="late")
        return
    yield Rollback()
    item.outcome = Outcome(Status.PROCESSED, item.result, reason=TWICE)


def _failed(work: Work, item: Item, error: Exception, *, unknown: bool) -> Op[None]:
    """Charged like any failure. An ordinary error says that the call did not happen; a timeout does not
    say, so the row stays `started` and the next try finds it unknown. Where no try is left, a person decides;
    a hook that raised Discard has decided."""
    verdict, calls = charge_queued(work, item, error)
    if unknown and verdict.fate is not Fate.RETRY:
        state = "discarded" if verdict.fate is Fate.DISCARDED else "parked"
        note = str(verdict.reason) if verdict.fate is Fate.DISCARDED else f"unknown; {type(error).__name__}"
        calls += (work.keyed(work.queries.effect_resolve, item, state=state, note=note),)
    elif not unknown:
        calls += (
            work.keyed(
                work.queries.effect_settle, item, token=item.token, state="failed", note=type(error).__name__
            ),
        )
    token = work.token()
    yield Begin(token)
    still = yield Fetch(work.call(work.queries.still_leased, seq=item.seq, token=item.token))
    if not still:
        yield Rollback()
        item.outcome = Outcome(Status.IN_FLIGHT, error=error)
        return
    yield Commit(token, leave(work, calls, *leaving((), [(item, verdict)])))
    item.outcome = verdict.outcome


def _reconcile(work: Work, item: Item) -> Op[bool]:
    """Ask the hook. True when it settled the message; False when the call is to be made."""
    try:
        happened = yield Ask(item)
    except Exception as error:
        # The hook could not say: charged, and as unknown as before.
        yield from _failed(work, item, error, unknown=True)
        return True
    if happened is None or happened is False:
        return False
    item.result = None if happened is True else happened
    yield from _finish(work, item, "reconciled")
    return True


def _park(work: Work, item: Item, policy: EffectPolicy, age_seconds: float) -> Op[None]:
    """A person decides: `oncebox effects settle`. The message lies among the dead until then."""
    why = (
        f"a call was begun and its end is not known; on_unknown={policy.on_unknown!r}"
        if policy.on_unknown == "park"
        else f"an unknown call is {age_seconds:.0f} s old, past key_ttl of {policy.key_ttl_seconds:g} s"
    )
    error = errors.UnknownEffect(f"consumer {work.consumer!r}, id {item.message.id!r}: {why}")
    settle = work.keyed(work.queries.effect_resolve, item, state="parked", note=why)
    token = work.token()
    yield Begin(token)
    still = yield Fetch(work.call(work.queries.still_leased, seq=item.seq, token=item.token))
    if not still:
        yield Rollback()
        item.outcome = Outcome(Status.IN_FLIGHT, error=error)
        return
    verdict = Verdict(Fate.DEAD, error, Reason.UNKNOWN_EFFECT)
    calls = (record_attempt(work, item, error), *bury_queued(work, item, verdict))
    yield Commit(token, leave(work, (*calls, settle), (), [item]))
    item.outcome = verdict.outcome
