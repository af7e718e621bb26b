"""The relay: takes outbox rows by state, publishes with confirms, and marks only what was confirmed.

Keys are divided into slots, each leased to one relay, so that one key's messages leave in one order.
A relay that stalls past its lease can only send something a second time, with the same id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from oncebox import errors
from oncebox.codec import describe_error, unpack_headers
from oncebox.core.outgoing import SLOTS, slot_of
from oncebox.core.queries import Queries
from oncebox.core.steps import Call, Op, Publish, Side
from oncebox.message import Message
from oncebox.policy import Backoff

TAKE_MAX = 500
RETRY = Backoff(attempts=20, base_seconds=0.2, max_seconds=60.0)
"""When a refused message is tried again, and when it is parked."""
MARK_MAX = 200
MARK_SECONDS = 0.2
"""How much of what was confirmed may wait to be marked together: a crash sends that much again."""
AWAY = (errors.BrokerUnavailable, errors.QueueFull)
"""No fault of the message: it is tried again for as long as it takes."""
AWAY_SECONDS_MAX = 10.0
"""The longest a row waits by itself for a broker that is away. Its pipe pauses as well, so that a long outage does
not write to the rows all the time; when the broker is back, they go out soon."""


class Outgoing(msgspec.Struct, frozen=True):
    """One outbox row."""

    seq: int
    message: Message
    topic: str | None
    attempts: int
    lazy: bool


class Relaying:
    """One relay's constants and what it knows about its lease."""

    def __init__(
        self,
        queries: Queries,
        relay: str,
        *,
        lease_seconds: float = 10.0,
        keep_seconds: float = 0.0,
        retry: Backoff = RETRY,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queries = queries
        self.relay = relay
        self.lease_seconds = lease_seconds
        self.keep_seconds = keep_seconds
        """How long published rows are kept; 0 deletes them at once."""
        self.retry = retry
        self.monotonic = monotonic
        self.slots: list[int] = []


def lease(relaying: Relaying) -> Op[None]:
    """Renew this relay's slots and take its fair share of what is free; give up what is over it."""
    queries, relay = relaying.queries, relaying.relay
    yield Side(Call(queries.relay_join, {"relay": relay, "seconds": relaying.lease_seconds}))
    held, others = (yield Side(Call(queries.slots_held, {"relay": relay})))[0]
    held = msgspec.json.decode(held) if isinstance(held, str) else list(held)
    share = -(-SLOTS // (others + 1))
    if len(held) > share:
        yield Side(Call(queries.slots_free, {"relay": relay, "keep": held[:share]}))
    params = {"relay": relay, "seconds": relaying.lease_seconds, "share": share}
    yield Side(Call(queries.slots_lease, params))
    held, _ = (yield Side(Call(queries.slots_held, {"relay": relay})))[0]
    relaying.slots = msgspec.json.decode(held) if isinstance(held, str) else list(held)


def release(relaying: Relaying) -> Op[None]:
    """Stop in order: other relays may take the slots at once."""
    relaying.slots = []
    yield Side(Call(relaying.queries.slots_free, {"relay": relaying.relay, "keep": []}))
    yield Side(Call(relaying.queries.relay_leave, {"relay": relaying.relay}))


def take(relaying: Relaying, *, away: Sequence[str] = (), limit: int = TAKE_MAX) -> Op[list[Outgoing]]:
    """What is due in this relay's slots, but for types that are `away`: their sink is busy or gone."""
    if not relaying.slots:
        return []
    params = {"slots": relaying.slots, "away": list(away), "limit": limit}
    rows = [_outgoing(row) for row in (yield Side(Call(relaying.queries.outbox_take, params)))]
    if any(row.lazy for row in rows):
        # Seen is not durable: a row of a lazy transaction must be on disk before it leaves.
        yield Side(Call(relaying.queries.outbox_flush, {}))
    return rows


def send(relaying: Relaying, rows: Sequence[Outgoing], *, keeps_order: bool = False) -> Op[bool]:
    """Publish these rows and settle each by its confirmation. False when their broker takes nothing now.

    Unless the sink keeps order, one message of a key is out at a time: each round holds the next of
    every key, and a key whose message was not confirmed is left for another try. A slot that has gone
    to another relay meanwhile takes its rows along.
    """
    failed: set[str] = set()
    confirmed: list[int] = []
    left = list(rows)
    taken = away = False
    marked = relaying.monotonic()
    while left:
        batch, left = (left, []) if keeps_order else heads(left)
        batch = [
            row for row in batch if row.message.key not in failed and slot_of(row.message) in relaying.slots
        ]
        if batch:
            replies = yield from _publish(batch)
            taken |= None in replies
            away |= any(isinstance(reply, AWAY) for reply in replies)
            confirmed += [row.seq for row, reply in zip(batch, replies, strict=True) if reply is None]
            failed |= yield from _put_off(relaying, batch, replies)
        if len(confirmed) >= MARK_MAX or relaying.monotonic() - marked > MARK_SECONDS:
            yield from _mark(relaying, confirmed)
            confirmed, marked = [], relaying.monotonic()
    yield from _mark(relaying, confirmed)
    return taken or not away


def park(relaying: Relaying, rows: Sequence[Outgoing], error: BaseException) -> Op[None]:
    """Keep rows that no sink will ever take for a person."""
    params = {"seqs": [row.seq for row in rows], "error": _text(error)}
    yield Side(Call(relaying.queries.outbox_park, params))


def heads(rows: Sequence[Outgoing]) -> tuple[list[Outgoing], list[Outgoing]]:
    """The first of every key and everything without one; then the rest, in order."""
    seen: set[str] = set()
    now: list[Outgoing] = []
    later: list[Outgoing] = []
    for row in rows:
        key = row.message.key
        (later if key is not None and key in seen else now).append(row)
        if key is not None:
            seen.add(key)
    return now, later


def _publish(batch: list[Outgoing]) -> Op[list[BaseException | None]]:
    """Confirmations, one for each; a sink that raises confirms nothing."""
    try:
        replies: list[BaseException | None] = yield Publish(tuple(batch))
    except Exception as error:
        return [error] * len(batch)
    if len(replies) != len(batch):
        return [errors.BrokerError("the sink did not answer for every message")] * len(batch)
    return replies


def _mark(relaying: Relaying, seqs: list[int]) -> Op[None]:
    """These were confirmed: delete them, or keep them as published."""
    queries = relaying.queries
    if seqs:
        query = queries.outbox_keep if relaying.keep_seconds else queries.outbox_drop
        yield Side(Call(query, {"seqs": seqs}))


def _put_off(relaying: Relaying, batch: list[Outgoing], replies: list[BaseException | None]) -> Op[set[str]]:
    """Put off or park what was not confirmed. Returns the keys that wait for another try."""
    queries = relaying.queries
    failed: set[str] = set()
    parked: dict[str, list[int]] = {}
    again: dict[tuple[str, int, bool], list[int]] = {}
    for row, reply in zip(batch, replies, strict=True):
        if reply is None:
            continue
        attempts = row.attempts + 1
        refused = isinstance(reply, errors.OnceboxError) and not reply.retryable
        if refused or (attempts >= relaying.retry.attempts and not isinstance(reply, AWAY)):
            parked.setdefault(_text(reply), []).append(row.seq)
            continue
        again.setdefault((_text(reply), attempts, isinstance(reply, AWAY)), []).append(row.seq)
        if row.message.key is not None:
            failed.add(row.message.key)
    for error, seqs in parked.items():
        yield Side(Call(queries.outbox_park, {"seqs": seqs, "error": error}))
    for (error, attempts, away), seqs in again.items():
        # Each row draws its own delay up to the ceiling, so that a batch which failed for one of them falls apart.
        seconds = relaying.retry.ceiling_seconds(attempts)
        params = {
            "seqs": seqs,
            "error": error,
            "seconds": min(seconds, AWAY_SECONDS_MAX) if away else seconds,
        }
        yield Side(Call(queries.outbox_fail, params))
    return failed


def _text(error: BaseException) -> str:
    text = describe_error(error)
    return f"{text.type}: {text.message}"


def _outgoing(row: Sequence[Any]) -> Outgoing:
    seq, message_id, source, kind, topic, key, payload, headers, content_type, attempts, lazy = row
    message = Message(
        id=message_id,
        source=source,
        type=kind,
        key=key,
        payload=bytes(payload),
        headers=unpack_headers(bytes(headers)),
        content_type=content_type,
        provenance={"topic": topic} if topic else {},
    )
    return Outgoing(seq, message, topic, attempts, bool(lazy))
