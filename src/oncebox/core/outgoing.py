"""What a handler sends: encoded when it says so, written together just before its commit.

A publication goes to the outbox, for the relay; a send goes straight into another consumer's queue.
Both are rows of the handler's own transaction: visible if and only if it commits.
"""

from __future__ import annotations

import os
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from oncebox import errors
from oncebox.codec import pack_headers
from oncebox.core.lanes import advance, lock, starts_unseen, touch
from oncebox.core.queries import Queries
from oncebox.core.steps import Call
from oncebox.core.storing import row_to_store
from oncebox.core.tracing import TRACE_HEADERS, Tracing
from oncebox.identity import derived, fingerprint
from oncebox.identity.lanes import Place
from oncebox.message import (
    PAYLOAD_BYTES_MAX,
    TYPE_BYTES_MAX,
    Headers,
    Message,
    MessageKey,
    check_text,
    encode_payload,
    header_pairs,
)
from oncebox.policy import Policy

if TYPE_CHECKING:
    from oncebox.core.work import Item, Work

SLOTS = 32
"""Shares of the keys that relays divide among themselves; as many rows as the table `slot` has."""
CORRELATION = "ce-correlationid"
CAUSATION = "ce-causationid"


class Publication(msgspec.Struct, frozen=True):
    """One message on its way out."""

    message: Message
    topic: str | None = None
    delay_seconds: float = 0.0
    ordered: bool = False


class Sending(msgspec.Struct, frozen=True):
    """One message for a consumer of the same database."""

    consumer: str
    message: Message


class Placing(msgspec.Struct, frozen=True):
    """How a consumer takes its messages in: what tells two of them apart, and their order."""

    policy: Policy
    place: Callable[[Message], Place]


def new_id() -> str:
    """A time-ordered id (UUID version 7)."""
    stamp = time.time_ns() // 1_000_000
    value = (stamp & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


def publication(
    kind: str,
    payload: object,
    *,
    key: object = None,
    topic: str | None = None,
    headers: Mapping[str, object] | Iterable[tuple[str, object]] = (),
    delay: timedelta | float | None = None,
    id: str | None = None,  # noqa: A002 - the domain's word
    ordered: bool = False,
    source: str = "",
    cause: Message | None = None,
    tracing: Tracing | None = None,
) -> Publication:
    """Encode now, so that what is wrong shows where it was written. MessageError, TooLarge, UsageError."""
    check_text("type", kind, TYPE_BYTES_MAX)
    if not kind:
        raise errors.MessageError("a publication needs a type: it is what consumers choose their handler by")
    if topic is not None:
        check_text("topic", topic, TYPE_BYTES_MAX)
    body = encode_payload(payload)
    if len(body) > PAYLOAD_BYTES_MAX:
        raise errors.TooLarge(f"a publication of {len(body):,} bytes; the limit is {PAYLOAD_BYTES_MAX:,}")
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay or 0.0)
    if not 0.0 <= seconds <= 366 * 86_400:
        raise errors.UsageError(f"delay={delay!r}: between nothing and a year")
    if ordered and key is None:
        raise errors.UsageError("ordered=True needs a key: order is per key")
    message = Message(
        id=id if id is not None else new_id(),
        type=kind,
        source=source,
        payload=body,
        headers=(*header_pairs(headers), *context(cause, tracing.carried() if tracing is not None else None)),
        key=None if key is None else str(key),
        content_type="application/octet-stream" if isinstance(payload, bytes) else "application/json",
    )
    return Publication(message, topic, seconds, ordered)


def context(cause: Message | None, traced: Headers | None = None) -> Headers:
    """Trace, correlation and causation, taken from the message being handled; the trace from where the handler
    is in it, where somebody traces."""
    if cause is None:
        return traced or ()
    carried: Iterable[tuple[str, bytes]] = traced or [
        (name, value) for name in TRACE_HEADERS if (value := cause.header(name)) is not None
    ]
    correlation = cause.header(CORRELATION) or cause.id.encode()
    return (*carried, (CORRELATION, correlation), (CAUSATION, cause.id.encode()))


def publish_call(queries: Queries, publications: Sequence[Publication], *, lazy: bool = False) -> Call:
    """The rows of these publications, in the order they were said."""
    rows = [
        {
            "slot": slot_of(each.message),
            "id": each.message.id,
            "source": each.message.source,
            "type": each.message.type,
            "topic": each.topic,
            "key": each.message.key,
            "payload": each.message.payload,
            "headers": pack_headers(each.message.headers),
            "content_type": each.message.content_type,
            "delay_seconds": each.delay_seconds,
            "ordered": each.ordered,
            "lazy": lazy,
        }
        for each in publications
    ]
    return Call(queries.publish, {"rows": rows})


def slot_of(message: Message) -> int:
    """Messages of one key share a slot, and so a relay; the rest is spread."""
    return zlib.crc32((message.key if message.key is not None else message.id).encode()) % SLOTS


def send_calls(
    queries: Queries, sendings: Sequence[Sending], placings: Mapping[str, Placing]
) -> tuple[Call, ...]:
    """Ledger and queue rows for other consumers, each consumer's together, in one order for all.

    An id that is known with another payload or type is buried as a conflict, in the same transaction:
    the sender may be long gone, and a message must not be dropped without a word.
    """
    stores: list[Call] = []
    clashes: list[Call] = []
    for consumer in sorted({each.consumer for each in sendings}):
        those = [each.message for each in sendings if each.consumer == consumer]
        placing = placings.get(consumer)
        places = [placing.place(message) if placing else (None, None) for message in those]
        # As its own intake would: the same id may come by a broker, too, and must be the same message then.
        how = placing.policy.fingerprint if placing else "raw"
        rows = [
            row_to_store(message, fingerprint(message.type, message.payload, how), message.payload, *place)
            for message, place in zip(those, places, strict=True)
        ]
        store = Call(queries.store, {"consumer": consumer, "rows": rows})
        stores += [store] if placing is None else _in_order(queries, consumer, placing, places, store)
        said = [{**row, "clash": _clash(consumer, row)} for row in rows]
        clashes.append(Call(queries.send_clash, {"consumer": consumer, "rows": said}))
    return (*stores, *clashes)


def _in_order(
    queries: Queries, consumer: str, placing: Placing, places: list[Place], store: Call
) -> list[Call]:
    """A send to an ordered consumer goes through its lanes, like everything that is stored there."""
    keys = sorted({key for key, _ in places if key is not None})
    if not keys:
        return [store]
    policy = placing.policy
    return [
        touch(queries, consumer, policy, keys),
        lock(queries, consumer, keys),
        *starts_unseen(queries, consumer, policy, places),
        store,
        *advance(queries, consumer, keys, by_arrival=policy.order_by == "key"),
    ]


def _clash(consumer: str, row: dict[str, Any]) -> str:
    return (
        f"consumer {consumer!r}: id {row['message_id']!r} was sent with another payload or type than the one that "
        f"is known (this type {row['type']!r}); known type: "
    )


def outgoing_calls(work: Work, items: Sequence[Item]) -> tuple[Call, ...]:
    """Everything these items' handlers send, for the closing message."""
    sendings = [each for item in items for each in item.sendings]
    publications = [each for item in items for each in item.publications]
    calls = send_calls(work.queries, sendings, work.outlets.placings) if sendings else ()
    return (*calls, publish_call(work.queries, publications, lazy=work.lazy)) if publications else calls


class Outlets(msgspec.Struct, frozen=True):
    """Where a consumer's handlers may send to."""

    source: str = ""
    """What goes out names this as its source."""
    has_sink: bool = False
    consumers: frozenset[str] = frozenset()
    """Consumers of the same app that store their messages."""
    placings: dict[str, Placing] = {}
    """How those of them that are ordered, or that don't compare raw bytes, take messages in."""
    tracing: Tracing | None = None
    """Who traces what is handled and sent; None: nobody."""


class Tx:
    """The transaction a handler runs in: what it is handling, and what it sends along.

    Neither `publish` nor `send` waits: both encode at once and are written before commit.
    """

    __slots__ = ("_outlets", "attempt", "closed", "consumer", "message", "publications", "sendings")

    def __init__(self, consumer: str, message: Message, attempt: int, outlets: Outlets | None = None) -> None:
        self.consumer = consumer
        self.message = message
        self.attempt = attempt
        """1 for the first try; counts failures and process deaths that are known."""
        self.publications: list[Publication] = []
        self.sendings: list[Sending] = []
        self.closed = False
        self._outlets = outlets or Outlets()

    @property
    def placings(self) -> Mapping[str, Placing]:
        """How the consumers that `send` reaches take their messages in, where that is not the plain way."""
        return self._outlets.placings

    def publish(
        self,
        type: str,  # noqa: A002 - the domain's word
        payload: object,
        *,
        key: object = None,
        topic: str | None = None,
        headers: Mapping[str, object] | Iterable[tuple[str, object]] = (),
        delay: timedelta | float | None = None,
        id: str | None = None,  # noqa: A002
        ordered: bool = False,
    ) -> str:
        """Have this message published if and only if the transaction commits; returns its id.

        Messages of one `key` go out in order if their transactions did not overlap; `ordered=True` makes
        overlapping ones wait for each other. `delay` schedules it. UsageError without a sink or after the
        handler has returned; MessageError and TooLarge for what can't be sent.
        """
        self._check_open("publish")
        if not self._outlets.has_sink:
            raise errors.UsageError(
                f"consumer {self.consumer!r}: tx.publish needs somewhere to publish to: App(…, sink=…); for a "
                "consumer of the same database use tx.send"
            )
        out = publication(
            type,
            payload,
            key=key,
            topic=topic,
            headers=headers,
            delay=delay,
            id=id,
            ordered=ordered,
            source=self._outlets.source,
            cause=self.message,
            tracing=self._outlets.tracing,
        )
        self.publications.append(out)
        return out.message.id

    def send(
        self,
        consumer: str,
        type: str,  # noqa: A002
        payload: object,
        *,
        key: object = None,
        headers: Mapping[str, object] | Iterable[tuple[str, object]] = (),
        id: str | None = None,  # noqa: A002
    ) -> str:
        """Store a message for another consumer of this database, in this transaction; returns its id.

        No broker is between them. The id is derived from the message being handled, so a second run
        sends the same one. UsageError for a consumer that this app does not have or that is inline.
        """
        self._check_open("send")
        if consumer not in self._outlets.consumers:
            raise errors.UsageError(
                f"consumer {self.consumer!r}: tx.send({consumer!r}, …) needs a consumer of this app with "
                f'mode="stored"; there are: {", ".join(sorted(self._outlets.consumers)) or "none"}'
            )
        message = publication(
            type, payload, key=key, headers=headers, source=self._outlets.source, cause=self.message,
            id=id if id is not None else self._sent_id(consumer, type), tracing=self._outlets.tracing,
        ).message  # fmt: skip
        self.sendings.append(Sending(consumer, message))
        return message.id

    def _sent_id(self, consumer: str, kind: str) -> str:
        origin = MessageKey(self.consumer, self.message.source, self.message.id)
        return derived(origin, f"{consumer}/{kind}/{len(self.sendings)}")

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise errors.UsageError(f"tx.{what} after the handler has returned: its transaction is over")
