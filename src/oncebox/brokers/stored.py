"""What a queue of the in-process broker holds, how a queue is declared, and what it reports. Plain values."""

from __future__ import annotations

from typing import Any

import msgspec

from oncebox.brokers.contract import Delivery, bound_identity
from oncebox.errors import ConfigError, MessageError, TooLarge
from oncebox.identity import Identity, Resolver
from oncebox.identity.resolvers import carried_source
from oncebox.message import Headers, Message

MESSAGE_BYTES_MAX = 32 * 1024 * 1024
"""Largest body with its headers and properties: more than a consumer takes, so that its own limit shows."""


class Stored(msgspec.Struct, gc=False):
    """One message in a queue. A duplicate is a `Stored` of its own."""

    body: bytes
    headers: Headers = ()
    properties: dict[str, Any] = {}
    key: str | None = None
    size: int = 0
    """Bytes of body, headers and properties together."""
    position: int = 0
    """Its place in the queue, which it keeps however often it comes back."""
    since: float = 0.0
    deliveries: int = 0
    redelivered: bool = False
    holds_key: bool = False
    """Nacked in a queue that pins keys: the key waits for it."""


class InFlight(msgspec.Struct, gc=False):
    """A message that a consumer has in hand, until `deadline`."""

    stored: Stored
    holder: int
    deadline: float


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How one queue behaves; fixed when it is declared. `ConfigError` names the word that is wrong."""

    visibility_seconds: float = 30.0
    """How long a delivery may go unanswered before the message is delivered again."""
    size_max: int = 1_000_000
    """Messages the queue holds, in flight included; beyond that `QueueFull`."""
    deliveries_max: int | None = None
    """After this many deliveries a message that comes back goes to `dead_letter` instead."""
    dead_letter: str | None = None
    """The queue for those; it need not be declared before."""
    retention_seconds: float | None = None
    """Messages older than this are not delivered any more; None keeps them until they are acked."""
    pins_keys: bool = False
    """One consumer at a time per key, in order: while one is in flight or nacked, the key waits."""

    def __post_init__(self) -> None:
        if self.visibility_seconds <= 0:
            raise ConfigError(f"visibility_seconds={self.visibility_seconds!r}: it is more than 0")
        if self.size_max < 1:
            raise ConfigError(f"size_max={self.size_max!r}: it is at least 1")
        if self.retention_seconds is not None and self.retention_seconds <= 0:
            raise ConfigError(f"retention_seconds={self.retention_seconds!r}: it is more than 0, or None")
        if self.deliveries_max is not None and self.deliveries_max < 1:
            raise ConfigError(f"deliveries_max={self.deliveries_max!r}: it is at least 1, or None")
        # One without the other would either drop messages silently or never use the dead-letter queue.
        if (self.deliveries_max is None) != (self.dead_letter is None):
            raise ConfigError("deliveries_max and dead_letter go together: set both, or neither")


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue holds now, and what it has done since it was declared."""

    ready: int = 0
    delayed: int = 0
    in_flight: int = 0
    published: int = 0
    """Messages taken in, duplicates on demand included."""
    delivered: int = 0
    redelivered: int = 0
    """Those of `delivered` that were marked as possible redeliveries."""
    acked: int = 0
    nacked: int = 0
    released: int = 0
    timed_out: int = 0
    """Came back because their visibility ran out."""
    dropped: int = 0
    """Came back because their consumer's connection was lost."""
    dead_lettered: int = 0
    lapsed: int = 0
    """Older than the queue's retention, and so never delivered again."""
    late: int = 0
    """Answers to a delivery that was no longer the answerer's; ignored."""

    @property
    def depth(self) -> int:
        """Everything that is not acked yet."""
        return self.ready + self.delayed + self.in_flight


COUNTERS = QueueStats.__struct_fields__[3:]
"""The fields of `QueueStats` that only grow."""


def to_store(message: Message | Delivery) -> Stored:
    """What a queue keeps of a message, or of a raw delivery when the message itself is to be broken.

    Raises `TooLarge` over 32 MiB, and `MessageError` for properties that have no wire form.
    """
    if isinstance(message, Message):
        body = message.payload
        properties: dict[str, Any] = {"message_id": message.id, "content_type": message.content_type}
        if message.type:
            properties["type"] = message.type
        if message.source:
            properties["source"] = message.source
    else:
        body, properties = message.body, dict(message.properties)
    try:
        size = len(body) + len(msgspec.msgpack.encode((message.headers, properties, message.key)))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise MessageError(f"headers and properties must be plain values: {error}") from error
    if size > MESSAGE_BYTES_MAX:
        raise TooLarge(f"a message of {size:,} bytes; the in-process broker takes {MESSAGE_BYTES_MAX:,}")
    return Stored(body, message.headers, properties, message.key, size)


def carried_identity(identity: Identity | None, type: str | Resolver | None) -> Identity:  # noqa: A002
    """The binding's identity, where a message's own `source` counts unless the binding names one."""
    bound = bound_identity(identity, type)
    return bound if bound.source else msgspec.structs.replace(bound, source=carried_source)
