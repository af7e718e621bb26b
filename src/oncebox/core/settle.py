"""What a person decides about a call that may have happened: it did, or it did not.

`happened` finishes the message with the result that the person gives; `did not` puts it back into the
queue, in its old place, and the call is made again with the same idempotency key.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oncebox import errors
from oncebox.codec import encode_result
from oncebox.core.audit import Act, Touched, audit
from oncebox.core.lanes import lock, unstick
from oncebox.core.queries import Queries
from oncebox.core.steps import Begin, Call, Commit, Execute, Fetch, Op, Rollback
from oncebox.core.work import new_token
from oncebox.message import Message

LIST_MAX = 1000


class OpenEffect(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was begun, and whose end is not known."""

    consumer: str
    source: str
    id: str
    idempotency_key: str
    state: str
    """`parked`: a person decides. `started`: it is being made, or its process has died."""
    calls: int
    age_seconds: float
    note: str


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What was settled, and how."""

    consumer: str
    source: str
    id: str
    state: str
    """`done`: it happened. `failed`: it did not, and the message is in the queue again."""


def open_effects(queries: Queries, consumer: str | None = None) -> Op[list[OpenEffect]]:
    """The calls whose end is not known, the oldest first."""
    rows = yield Fetch(Call(queries.effects_open, {"consumer": consumer, "limit": LIST_MAX}))
    return [
        OpenEffect(
            consumer=row[0], source=row[1], id=row[2], idempotency_key=row[3], state=row[4], calls=row[5],
            age_seconds=float(row[6]), note=row[7],
        )
        for row in rows
    ]  # fmt: skip


def settle(
    queries: Queries,
    message_id: str,
    *,
    happened: bool,
    reason: str,
    who: str = "",
    result: Any = None,
    consumer: str | None = None,
    source: str | None = None,
) -> Op[Settled]:
    """Decide about one call, in one transaction. UsageError for what is not open, or is being called now."""
    key = yield from _find(queries, message_id, consumer, source)
    named = f"consumer {key['consumer']!r}, id {message_id!r}"
    token = new_token()
    try:
        yield Begin(token)
        queued = yield Fetch(Call(queries.queued, key))
        if queued and queued[0][1]:
            raise errors.UsageError(f"{named}: a worker has it in hand right now; wait until it is parked")
        calls: list[Call] = []
        if happened:
            calls += (
                [Call(queries.keep_result, {**key, "body": encode_result(result)})]
                if result is not None
                else []
            )
            calls += [Call(queries.finish, {"seqs": [queued[0][0]]})] if queued else []
        else:
            calls.append(Call(queries.exhume, key))
        state = "done" if happened else "failed"
        calls.append(Call(queries.unbury, key))
        calls.append(Call(queries.effect_resolve, {**key, "state": state, "note": reason}))
        places = yield Fetch(Call(queries.place_of, key))
        lane, version = tuple(places[0]) if places else (None, None)
        if lane is not None:
            yield Fetch(lock(queries, key["consumer"], [lane]))
        if not (yield Execute(tuple(calls))):
            raise errors.UsageError(f"{named}: somebody else has settled it meanwhile")
        message = Message(id=message_id, source=key["source"])
        again = unstick(queries, key["consumer"], message, lane, None if happened else version)
        act = Act(verb="effects settle", who=who, reason=reason, filter={"happened": happened})
        touched = Touched(consumer=key["consumer"], source=key["source"], id=message_id, result=state)
        yield Commit(token, (*again, audit(queries, act, [touched])))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    return Settled(consumer=key["consumer"], source=key["source"], id=message_id, state=state)


def _find(queries: Queries, message_id: str, consumer: str | None, source: str | None) -> Op[dict[str, Any]]:
    """The key of the one open effect that is meant."""
    params = {"message_id": message_id, "consumer": consumer, "source": source}
    rows = yield Fetch(Call(queries.effect_find, params))
    if not rows:
        raise errors.UsageError(f"no effect of id {message_id!r}; oncebox effects list shows the open ones")
    found = [row for row in rows if row[2] in ("started", "parked")]
    if not found:
        raise errors.UsageError(
            f"consumer {rows[0][0]!r}, id {message_id!r}: its effect is {rows[0][2]}; there is nothing to settle"
        )
    if len(found) > 1:
        which = ", ".join(f"--consumer {row[0]} --source {row[1] or repr('')}" for row in found)
        raise errors.UsageError(f"id {message_id!r} has {len(found)} open effects; name one of: {which}")
    return {"consumer": found[0][0], "source": found[0][1], "message_id": message_id}
