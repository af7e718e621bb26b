"""A consumer's message in a transaction that the caller has: the guard, with the handler in its block.

The caller commits. What goes wrong is raised, because only the caller can roll back.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from oncebox import errors
from oncebox.core.guard import Join
from oncebox.core.keeping import keeping
from oncebox.core.known import known_outcome
from oncebox.core.lanes import advance_those, enter, lock, starts_unseen
from oncebox.core.outcomes import OBSERVED, Outcome, Status
from oncebox.core.outgoing import Outlets, publish_call, send_calls
from oncebox.core.run import run, run_async
from oncebox.core.steps import Call, Execute, Fetch, Op
from oncebox.core.storing import rows_to_store
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


def handle_joined(inbox: Inbox, policy: Policy, item: Item, handle: Any, outlets: Outlets) -> Outcome:
    """Claim, handle and write down what the handler sends, in the transaction of a blocking handle."""
    message, handler = item.message, _handler(item)
    with inbox.once(
        handle, message.id, source=message.source, type=message.type, payload=message.payload
    ) as claim:
        if claim.first:
            tx = Tx(inbox.consumer, message, 1, outlets)
            with _traced(inbox, item, outlets):
                claim.result = handler.call(handler.decode(message.payload), message, tx, handle)
            run(_after(inbox, policy, item, tx), adapter_for(handle).perform)
    return _outcome(claim)


async def handle_joined_async(
    inbox: Inbox, policy: Policy, item: Item, handle: Any, outlets: Outlets
) -> Outcome:
    """The same in the transaction of an async handle."""
    message, handler = item.message, _handler(item)
    async with inbox.once(
        handle, message.id, source=message.source, type=message.type, payload=message.payload
    ) as claim:
        if claim.first:
            tx = Tx(inbox.consumer, message, 1, outlets)
            with _traced(inbox, item, outlets):
                claim.result = await handler.call(handler.decode(message.payload), message, tx, handle)
            await run_async(_after(inbox, policy, item, tx), adapter_for(handle).perform)
    return _outcome(claim)


def _traced(inbox: Inbox, item: Item, outlets: Outlets) -> AbstractContextManager[None]:
    tracing = outlets.tracing
    return nullcontext() if tracing is None else tracing.handling(inbox.consumer, (item,), None)


def _after(inbox: Inbox, policy: Policy, item: Item, tx: Tx) -> Op[None]:
    """The rows of what is kept, and of what a handler sends. NOTIFY goes along: it is heard when the caller
    commits."""
    tx.closed = True
    if policy.keep_payload != "always" and not tx.sendings and not tx.publications:
        return
    queries = yield Join(inbox.schema)
    if kept := keeping(Work(inbox.consumer, queries, policy), (item,)):
        yield Execute(kept)
    for call in send_calls(queries, tx.sendings, tx.placings):
        if len(call.query.statements) > 1:
            yield from _rows(call)
        else:
            yield Execute((call,))
    if tx.publications:
        yield Execute((publish_call(queries, tx.publications),))
        yield Fetch(Call(queries.ring, {}))


def _rows(call: Call) -> Op[list[Any]]:
    """Perform a call; where its query is several statements, the later ones get what the first returned."""
    first, *rest = call.query.parts()
    found: list[Any] = []
    if not rest:
        found += yield Fetch(call)
        return found
    for row in call.params["rows"]:
        stored = yield Fetch(Call(first, {**call.params, "rows": [row]}))
        for query in rest if stored else ():
            rows = [{**row, "seq": stored[0][0]}]
            found += yield Fetch(Call(query, {**call.params, "rows": rows}))
    return found


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
    if item.lane is not None:
        keys, touching = enter(work, [item])
        yield Execute((touching,))
        yield Fetch(lock(queries, consumer, keys))
        for call in starts_unseen(queries, consumer, policy, [(item.lane, item.version)]):
            yield Execute((call,))
    stored = yield from _rows(rows_to_store(work, [item]))
    if item.lane is not None:
        for call in advance_those(work, [item.lane]):
            yield Execute((call,))
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
    if item.lane is not None:
        raise errors.UsageError(
            "an ordered consumer can't run inside your transaction: call process without a handle, or use "
            'mode="stored", where a handle stores the message'
        )
    return item.handler


def _outcome(claim: Claim) -> Outcome:
    if claim.observed:
        status = OBSERVED[Status.DUPLICATE if claim.observed == "duplicate" else Status.DEAD]
        return Outcome(status, claim.result)
    if claim.first:
        return Outcome(Status.PROCESSED, claim.result)
    return Outcome(_STATES[claim.state], claim.result, reason=claim.reason)
