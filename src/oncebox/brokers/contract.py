"""What oncebox asks of a broker: a `Source` to receive from, a `Sink` to publish to.

Both are protocols: nothing has to be inherited. The runtime decides what every delivery is answered;
a source only carries the answer out. `docs/reference/brokers.md` is this contract at length, and
`tests/brokers/suite.py` is the test that a broker passes to keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from oncebox.core.place import Place
from oncebox.errors import BrokerError, BrokerUnavailable, ConfigError
from oncebox.identity import Identity, Resolver
from oncebox.message import Headers, Message

__all__ = [
    "BrokerError",
    "BrokerUnavailable",
    "Burying",
    "Copying",
    "Delaying",
    "Delivery",
    "Pushing",
    "Sink",
    "Source",
    "SourceFacts",
    "Watermarked",
    "bound_identity",
]


class Delivery(msgspec.Struct, kw_only=True, gc=False):
    """One delivery of one message, as the broker handed it out.

    A message that is delivered twice is two deliveries, each with a `tag` of its own. Nothing here is
    trusted yet: identity, type and limits are decided by whoever turns it into a `Message`.
    """

    body: bytes
    headers: Headers = ()
    """(name, bytes) pairs in the order they came, repeats and bytes that are not UTF-8 included."""
    properties: dict[str, Any] = {}
    """What the broker itself knows as identity or type: `message_id`, `type`, `content_type`, …"""
    provenance: dict[str, Any] = {}
    """Where it came from (topic, partition, offset, queue, …), for people; never identity."""
    key: str | None = None
    """The ordering key, where the broker has one."""
    deliveries: int = 1
    """How often the broker has delivered this, 1 = first; always 1 where it does not count."""
    redelivered: bool = False
    """True when this may be a redelivery. False is a promise only where the broker counts."""
    place: Place | None = None
    """Where it lies in its partition, from a source that has duplicates told by watermark."""
    tag: Any = None
    """The source's own handle for its answer; opaque to everyone else, and never identity."""


class SourceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker says it does with a source's messages; None where it has no such limit or does not tell.

    A source may have `async def look(self) -> SourceFacts`: it asks its broker without subscribing, creates
    nothing, learns its redelivery horizon, and raises as `open` does. `oncebox doctor` asks it.
    """

    deliveries_max: int | None = None
    """After so many deliveries the broker gives a message up."""
    dead_letter: str | None = None
    """Where the broker puts what it has given up; None: nowhere."""
    visibility_seconds: float | None = None
    """How long a delivery may go without a sign of life before it is delivered again."""
    answer_seconds_max: float | None = None
    """How long a delivery may go unanswered whatever is done to keep it."""
    volatile: tuple[str, ...] = ()
    """Why the broker may lose what it has accepted."""


class Source(Protocol):
    """Where deliveries come from. One source is one subscription of one consumer.

    Constructing one opens nothing. Every delivery that `receive` returned is answered once, by `ack`,
    `nack` or `release`, on the source that gave it; what is never answered comes back by itself
    (visibility timeout, closed channel, rebalance). An answer for a delivery that is no longer this
    source's is ignored, never an error: the broker has already decided to deliver it again.

    A lost connection raises `BrokerUnavailable` from `receive`. The caller backs off and calls `receive`
    again, which connects again by itself; `open` is called once.
    """

    name: str
    """For logs and metrics, and unique within an app."""
    in_process: bool
    """True only when the messages live in this process, so that no database need be named."""
    identity: Any
    """How id, source and type are resolved (`oncebox.identity.Identity`), or None for the default."""
    counts_deliveries: bool
    """True when `Delivery.deliveries` counts, also across the death of a consumer's process."""
    redelivery_horizon_seconds: float | None
    """The longest time after which a message can still be delivered again; None when unbounded."""
    pins_keys: bool
    """True when all messages of one key go to one consumer at a time, in order."""

    async def open(self) -> None:
        """Connect and check that what is named exists.

        Raises `BrokerUnavailable` when the broker can't be reached, and `ConfigError` naming the next
        step when it can but the topology is not what this source needs.
        """
        ...

    async def close(self) -> None:
        """Give back what was not answered and disconnect. Never raises for a broker that is gone."""
        ...

    async def receive(self, limit: int) -> list[Delivery]:
        """Wait until at least one delivery is there and return what is there, `limit` at most.

        Does not wait for more. Cancel-safe: a cancelled receive loses nothing and holds nothing back.
        Raises `BrokerUnavailable` when the connection is lost or the source is closed.
        """
        ...

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """These are done for good: never deliver them again.

        Returning is no promise that the broker has heard: an ack lost on the way costs a redelivery.
        """
        ...

    async def nack(self, delivery: Delivery, delay_seconds: float) -> None:
        """Not done: deliver again, not before `delay_seconds` have passed, counted as a delivery."""
        ...

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Not even tried: give back at once, without counting the delivery where the broker can."""
        ...

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """Still working on it: keep these from being delivered again for `seconds` from now.

        Does nothing where the broker has no such limit.
        """
        ...


class Delaying(Protocol):
    """What a `Source` may say about itself besides: `delays`. Without it, True is understood."""

    delays: bool
    """Whether the broker can put one message off while others go on. Where it can't, a `nack` would hold
    up what is behind: what fails in an inline consumer goes to its queue in the database, and is acked."""


class Pushing(Protocol):
    """What a `Source` may say about itself besides: `pushes`. Without it, False is understood."""

    pushes: bool
    """Whether the broker sends by itself, as many as it was ever asked for: then it is always asked for the same."""


class Watermarked(Protocol):
    """What a `Source` may say about itself besides: `watermarked`. Without it, False is understood."""

    watermarked: bool
    """Every delivery has a `place`, and duplicates are told by it: one row per partition instead of one per message."""


class Burying(Protocol):
    """What a `Source` may have besides: a place for dead messages. Without it, they are acked."""

    async def bury(self, delivery: Delivery, reason: str) -> None:
        """This one is dead, and kept as such in the database: as `ack`, once a copy is where the broker
        keeps dead messages, with its id and headers. What could not be copied is delivered again."""
        ...


class Copying(Protocol):
    """What a `Burying` source may have besides, for messages that die in the consumer's queue."""

    async def copy_dead(self, message: Message, reason: str) -> None:
        """This one was acked when it was stored, and is dead now, which is committed: put a copy where the broker
        keeps dead messages. Does not wait for it, and tries while the source is open; nothing hangs on it."""
        ...


class Sink(Protocol):
    """Where published messages go. Constructing one opens nothing.

    A sink may have `creates`: true where opening it makes what is missing, so that whoever only looks leaves it alone.
    """

    name: str
    """For logs and metrics."""

    async def open(self) -> None:
        """Connect and check that what is named exists; errors as `Source.open`."""
        ...

    async def close(self) -> None:
        """Disconnect. Never raises for a broker that is gone."""
        ...

    async def publish(self, messages: Sequence[Message]) -> list[BaseException | None]:
        """Publish and wait for the broker's confirmation of every message.

        Returns one entry per message, in order: None when the broker has taken it, else why it is not
        known to have. A message without a None is sent again, with the same id; raising instead says
        the same of all of them.
        """
        ...


def bound_identity(identity: Identity | None, type: str | Resolver | None) -> Identity:  # noqa: A002
    """The identity of a binding that may name the type next to it: `queue("payments", type="paid")`.

    `ConfigError` when both name a type.
    """
    identity = identity or Identity()
    if type is None:
        return identity
    if identity.type is not None:
        raise ConfigError(f"the type is named twice: type={type!r}, and by the identity; keep one of them")
    return msgspec.structs.replace(identity, type=type)
