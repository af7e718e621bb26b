"""A consumer's message in a transaction that the caller has: the guard, with the handler in its block.

The caller commits. What goes wrong is raised, because only the caller can roll back.
"""

from __future__ import annotations

from typing import Any

from oncebox import errors
from oncebox.core.guard import Join
from oncebox.core.inline import known_outcome
from oncebox.core.outcomes import Outcome, Status
from oncebox.core.run import run, run_async
from oncebox.core.steps import Call, Fetch, Op
from oncebox.core.stored import rows_to_store
from oncebox.core.work import Item, Tx, Work
from oncebox.inbox import Claim, Inbox
from oncebox.inbox.adapters import adapter_for
from oncebox.policy import Policy

_STATES = {
    "done": Status.DUPLICATE,
    "waiting": Status.WAITING,
    "dead": Status.DEAD,
    "discarded": Status.DISCARDED,
    "stale": Status.STALE,
    "suppressed": Status.SUPPRESSED,
}


def handle_joined(inbox: Inbox, item: Item, handle: Any) -> Outcome:
    """Claim and handle in the transaction of a blocking handle."""
    message, handler = item.message, _handler(item)
    with inbox.once(
        handle, message.id, source=message.source, type=message.type, payload=message.payload
    ) as claim:
        if claim.first:
            tx = Tx(inbox.consumer, message, 1)
            claim.result = handler.call(handler.decode(message), message, tx, handle)
    return _outcome(claim)


async def handle_joined_async(inbox: Inbox, item: Item, handle: Any) -> Outcome:
    """Claim and handle in the transaction of an async handle."""
    message, handler = item.message, _handler(item)
    async with inbox.once(
        handle, message.id, source=message.source, type=message.type, payload=message.payload
    ) as claim:
        if claim.first:
            tx = Tx(inbox.consumer, message, 1)
            claim.result = await handler.call(handler.decode(message), message, tx, handle)
    return _outcome(claim)


def store_joined(schema: str, consumer: str, policy: Policy, item: Item, handle: Any) -> Outcome:
    """Store for the workers, in the transaction of a blocking handle."""
    adapter = adapter_for(handle)
    if adapter.awaits:
        raise TypeError("this handle is async: await consumer.process(message, handle)")
    return run(_store(schema, consumer, policy, item), adapter.perform)


async def store_joined_async(schema: str, consumer: str, policy: Policy, item: Item, handle: Any) -> Outcome:
    """Store for the workers, in the transaction of an async handle."""
    adapter = adapter_for(handle)
    if not adapter.awaits:
        raise TypeError("this handle is blocking: consumer.process_sync(message, handle)")
    return await run_async(_store(schema, consumer, policy, item), adapter.perform)


def _store(schema: str, consumer: str, policy: Policy, item: Item) -> Op[Outcome]:
    queries = yield Join(schema)
    work = Work(consumer, queries, policy)
    call = rows_to_store(work, [item])
    first, *rest = call.query.parts()
    stored = yield Fetch(Call(first, call.params))
    for query in rest if stored else ():
        row = {**call.params["rows"][0], "seq": stored[0][0]}
        yield Fetch(Call(query, {**call.params, "rows": [row]}))
    if stored:
        return Outcome(Status.STORED)
    rows = yield Fetch(work.keyed(queries.lookup_one, item))
    if not rows:
        raise errors.ClaimLost(f"consumer {consumer!r}: no answer about id {item.message.id!r}; try again")
    found = known_outcome(work, item, tuple(rows[0]))
    if isinstance(found, Outcome):
        return found
    raise found.error


def _handler(item: Item) -> Any:
    if item.refusal is not None:
        raise item.refusal[1]
    return item.handler


def _outcome(claim: Claim) -> Outcome:
    if claim.first:
        return Outcome(Status.PROCESSED, claim.result)
    return Outcome(_STATES[claim.state], claim.result, reason=claim.reason)
