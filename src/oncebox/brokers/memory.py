"""A broker inside the process, at least once for real: for demos, tests and development.

It redelivers what is not answered in time, counts deliveries, delays, duplicates on demand, bounds its
queues and moves what fails too often to a dead-letter queue. It keeps nothing when the process ends.
Threads and event loops may share one `Memory`; other processes reach it through `serve`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager

from oncebox.brokers.contract import Delivery
from oncebox.brokers.destination import topic_of
from oncebox.brokers.hub import Hub
from oncebox.brokers.serve import serve
from oncebox.brokers.stored import QueueStats, carried_identity, to_store
from oncebox.clock import Clock, SystemClock
from oncebox.errors import BrokerUnavailable, ConfigError, MessageError
from oncebox.identity import Identity, Resolver
from oncebox.message import Message

__all__ = ["Memory", "MemorySource", "MemoryTopic", "QueueStats"]


YIELD_EVERY = 32
"""Receives in a row after which the event loop gets its turn."""


class Memory:
    """An in-process broker: named queues to consume from, topics that fan out to them.

    `clock` decides visibility and delays. Every method is safe from any thread.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._hub = Hub(self.clock)

    def queue(
        self,
        name: str,
        *,
        type: str | Resolver | None = None,  # noqa: A002 - the word that every source uses
        identity: Identity | None = None,
        prefetch: int | None = None,
        visibility_seconds: float | None = None,
        size_max: int | None = None,
        deliveries_max: int | None = None,
        dead_letter: str | None = None,
        retention_seconds: float | None = None,
        pins_keys: bool | None = None,
    ) -> MemorySource:
        """A new subscription to the queue `name`, which the first call declares.

        `type` and `identity` say how messages are told apart, where they don't say it themselves: a
        `Message` carries its id, source and type. `prefetch` bounds what this subscription may hold
        unanswered; None leaves that to the caller. The other words describe the queue itself:

        - `visibility_seconds` (30): how long a delivery may go unanswered before it is given to another;
        - `size_max` (1,000,000): messages it holds, in flight included, before it refuses more;
        - `deliveries_max` with `dead_letter`: after so many deliveries a message moves to that queue;
        - `retention_seconds` (none): older messages are not delivered any more;
        - `pins_keys` (False): one consumer at a time per key, in order.

        `ConfigError` for a value that can't be, or for one that differs from what was declared.
        """
        words = {
            "visibility_seconds": visibility_seconds,
            "size_max": size_max,
            "deliveries_max": deliveries_max,
            "dead_letter": dead_letter,
            "retention_seconds": retention_seconds,
            "pins_keys": pins_keys,
        }
        self._hub.declare(name, {word: value for word, value in words.items() if value is not None})
        return MemorySource(self._hub, name, type=type, identity=identity, prefetch=prefetch)

    def topic(self, name: str) -> MemoryTopic:
        """A sink that copies every message to the queues bound to `name`."""
        return MemoryTopic(self._hub, name)

    exchange = topic

    def bind(self, topic: str, queue: str, *types: str) -> None:
        """Copy what is published to `topic` into `queue`: these types, or all when none is named.

        Binding again replaces the types. `ConfigError` when the queue is not declared.
        """
        self._hub.bind(topic, queue, frozenset(types))

    def put(
        self, queue: str, *messages: Message | Delivery, duplicates: int = 0, delay_seconds: float = 0.0
    ) -> None:
        """Put messages at the end of a queue, from any thread: all of them or, with `QueueFull`, none.

        With `duplicates`, each is there that many times more, as messages of their own with the same
        content. A `Delivery` is put as it is (body, headers, properties, key), with no identity added.
        """
        self._hub.store(queue, [to_store(message) for message in messages], duplicates, delay_seconds)

    async def publish(
        self, queue: str, *messages: Message | Delivery, duplicates: int = 0, delay_seconds: float = 0.0
    ) -> None:
        """As `put`, for coroutines; never waits."""
        self.put(queue, *messages, duplicates=duplicates, delay_seconds=delay_seconds)

    def stats(self) -> dict[str, QueueStats]:
        """What every queue holds and has done, by name, as of now."""
        return self._hub.stats()

    async def drained(self, *queues: str) -> None:
        """Wait until these queues are empty: nothing ready, delayed or in flight.

        Without names: all queues but those that collect dead letters.
        """
        await self._hub.drained(queues)

    def serve(self) -> AbstractAsyncContextManager[str]:
        """Let other processes in while the block runs; gives the address that `RemoteMemory` takes.

        It listens on a random port of 127.0.0.1, and the address carries a secret: hand it to children
        by environment rather than by argument, and keep it out of logs.
        """
        return serve(self._hub)


class MemorySource:
    """One subscription to a queue of a `Memory`; usable from any event loop, or from several at once."""

    in_process = True
    counts_deliveries = True

    def __init__(
        self,
        hub: Hub,
        name: str,
        *,
        type: str | Resolver | None = None,  # noqa: A002
        identity: Identity | None = None,
        prefetch: int | None = None,
    ) -> None:
        if prefetch is not None and prefetch < 1:
            raise ConfigError(
                f"queue {name!r}: prefetch={prefetch!r}; it is at least 1, or None for no bound"
            )
        options = hub.options(name)
        self.name = name
        self.identity = carried_identity(identity, type)
        self.prefetch = prefetch
        self.redelivery_horizon_seconds = options.retention_seconds
        self.pins_keys = options.pins_keys
        self._hub = hub
        self._holder = 0
        self._open = False
        self._receives = 0

    async def open(self) -> None:
        """Begin to hold deliveries. Opening an open source changes nothing."""
        self._open = True

    async def close(self) -> None:
        """Give back what was not answered, at once and uncounted; waiting receives end."""
        self._open = False
        self._leave(counted=False)

    def drop(self) -> None:
        """Do as a lost connection would: what was not answered comes back at once and counted, waiting
        receives raise `BrokerUnavailable`, and the next one connects again."""
        self._leave(counted=True)

    async def receive(self, limit: int) -> list[Delivery]:
        """See `Source.receive`; raises `BrokerUnavailable` when this source is not open."""
        if not self._open:
            raise BrokerUnavailable(f"the source of queue {self.name!r} is not open")
        self._holder = self._holder or self._hub.enter()
        self._receives += 1
        if self._receives % YIELD_EVERY == 0:
            # A queue that is never empty never waits, and would keep the loop from all its other work.
            await asyncio.sleep(0)
        return await self._hub.receive(self.name, self._holder, limit, self.prefetch)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.ack`; what timed out before this is ignored, and delivered again."""
        self._hub.answer(self.name, lambda queue, now: queue.ack(_tags(deliveries), self._holder, now))

    async def nack(self, delivery: Delivery, delay_seconds: float) -> None:
        """See `Source.nack`; the message comes back to its own place in the queue."""
        self._hub.answer(
            self.name, lambda queue, now: queue.nack(delivery.tag, delay_seconds, self._holder, now)
        )

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.release`; the delivery is not counted."""
        self._hub.answer(self.name, lambda queue, now: queue.release(_tags(deliveries), self._holder, now))

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """See `Source.extend`; never shortens the time that is left."""
        self._hub.answer(
            self.name, lambda queue, now: queue.extend(_tags(deliveries), seconds, self._holder, now)
        )

    def _leave(self, *, counted: bool) -> None:
        holder, self._holder = self._holder, 0
        self._hub.leave(self.name, holder, counted=counted)


class MemoryTopic:
    """A sink: every message goes to every queue that is bound to the topic for its type; a message with a
    topic of its own, to the queues of that one.

    What no queue is bound for is taken and gone, as with any broker's fan-out.
    """

    def __init__(self, hub: Hub, name: str) -> None:
        self.name = name
        self._hub = hub

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def publish(self, messages: Sequence[Message]) -> list[BaseException | None]:
        """See `Sink.publish`; a message for a full queue is `QueueFull` and was copied nowhere."""
        confirmations: list[BaseException | None] = []
        for message in messages:
            try:
                stored = to_store(message)
            except MessageError as error:
                confirmations.append(error)
            else:
                confirmations += self._hub.route(topic_of(message) or self.name, [stored])
        return confirmations


def _tags(deliveries: Iterable[Delivery]) -> list[int]:
    return [delivery.tag for delivery in deliveries]
