"""A queue to consume from."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from aiormq.abc import DeliveredMessage
from msgspec import structs

from oncebox.brokers.contract import Delivery, SourceFacts
from oncebox.brokers.rabbitmq.connection import LOST, Link, answered
from oncebox.brokers.rabbitmq.delays import DelayQueues
from oncebox.brokers.rabbitmq.subscription import Subscription
from oncebox.brokers.rabbitmq.topology import QueueWords, check_queue, delivery_limit
from oncebox.brokers.rabbitmq.wire import to_delivery
from oncebox.errors import BrokerUnavailable, ConfigError
from oncebox.identity import Identity

IDLE_SECONDS = 1.0
"""How long what has arrived may wait for a `receive` before others get it."""
HOLD_SECONDS = 1.0
"""Delays up to this are waited out in the process; longer ones in a queue of the broker."""
CONSUMER_TIMEOUT_SECONDS = 1800.0
"""RabbitMQ's own `consumer_timeout`, unless its configuration says otherwise; AMQP does not tell."""


class Tag(NamedTuple):
    """A delivery's place: on its channel, and what came."""

    subscription: Subscription
    number: int
    message: DeliveredMessage


class RabbitSource:
    """One subscription to a queue. `counts_deliveries` and `pins_keys` are known once it is open."""

    in_process = False
    pushes = True
    redelivery_horizon_seconds: float | None = None

    def __init__(
        self,
        link: Link,
        publishing: Link,
        words: QueueWords,
        identity: Identity,
        prefetch: int | None,
        key_header: str,
    ) -> None:
        self.name = words.name
        self.identity = identity
        self.counts_deliveries = words.kind == "quorum"
        self.pins_keys = bool(words.single_active_consumer)
        self.idle_seconds = IDLE_SECONDS
        self._link = link
        self._words = words
        self._prefetch = prefetch or 65_535
        self._key_header = key_header
        self._delays = DelayQueues(publishing, words.name)
        self._open = False
        self._subscription: Subscription | None = None
        self._changing: asyncio.Task[None] | None = None
        self._receiving = 0
        self._idle: asyncio.TimerHandle | None = None
        self._held: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect, and check the queue; see `Source.open`. Opening an open source changes nothing."""
        if self._open:
            return
        self._link.enter()
        try:
            facts = await check_queue(self._link, self._words)
        except BaseException:
            await self._link.leave()
            raise
        self.counts_deliveries = facts.kind == "quorum"
        self.pins_keys = facts.single_active_consumer
        self._open = True

    async def look(self) -> SourceFacts:
        """See `SourceFacts`."""
        self._link.enter()
        try:
            facts = await check_queue(self._link, structs.replace(self._words, create=False))
            limit = delivery_limit(self._link, facts)
        finally:
            await self._link.leave()
        return SourceFacts(
            deliveries_max=limit,
            dead_letter=facts.arguments.get("x-dead-letter-exchange"),
            answer_seconds_max=CONSUMER_TIMEOUT_SECONDS,
        )

    async def close(self) -> None:
        """See `Source.close`."""
        if not self._open:
            return
        self._open = False
        self._calm()
        for task in [*self._held, *([self._changing] if self._changing else [])]:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close(self._closed())
        await self._delays.close()
        await self._link.leave()

    async def receive(self, limit: int) -> list[Delivery]:
        """See `Source.receive`."""
        self._receiving += 1
        self._calm()
        try:
            while True:
                subscription = await self._subscribed(limit)
                # Nothing is awaited between the taking and the return: safe to cancel.
                if taken := subscription.take(limit):
                    return [self._delivery(subscription, message) for message in taken]
                await subscription.arrival()
        finally:
            self._receiving -= 1
            self._arrived()

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.ack`."""
        if (subscription := self._subscription) is not None:
            await subscription.ack(self._numbers(subscription, deliveries))

    async def nack(self, delivery: Delivery, delay_seconds: float) -> None:
        """See `Source.nack`. A longer delay is waited out by a copy in a delay queue, which goes to the end
        of the line and keeps id, headers and count."""
        subscription = self._subscription
        if subscription is None or not self._numbers(subscription, [delivery]):
            return
        if delay_seconds <= 0:
            await subscription.requeue([delivery.tag.number])
        elif delay_seconds <= HOLD_SECONDS or not await self._delays.send(
            delivery.tag.message, delivery.deliveries, delay_seconds
        ):
            self._hold(subscription, delivery.tag.number, delay_seconds)
        else:
            # Acked only now that the copy is confirmed; a crash in between leaves both, and one effect.
            await subscription.ack([delivery.tag.number])

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.release`; a quorum queue counts it all the same."""
        if (subscription := self._subscription) is not None:
            await subscription.requeue(self._numbers(subscription, deliveries))

    async def bury(self, delivery: Delivery, reason: str) -> None:
        """Where `dead_letter_exchange` was said, the broker moves the message there, with its id and headers;
        else as `ack`. Either way it is kept in the database."""
        if self._words.dead_letter_exchange is None:
            await self.ack([delivery])
        elif (subscription := self._subscription) is not None:
            for number in self._numbers(subscription, [delivery]):
                await subscription.bury(number)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """Nothing to do: RabbitMQ waits for an answer as long as the connection lives, up to the broker's
        own `consumer_timeout` (30 minutes)."""

    async def flush(self) -> None:
        """Return when the queue has heard every answer given so far."""
        if (subscription := self._subscription) is not None and subscription.over is None:
            with contextlib.suppress(*LOST):
                async with answered():
                    await subscription.channel.queue_declare(self.name, passive=True)

    # Subscribing. One change at a time, in a task of its own: cancelling a call half-way would close the
    # channel, and with it give back everything that is being worked on.

    async def _subscribed(self, limit: int) -> Subscription:
        """Consuming, with room for `limit` more than the caller has."""
        while True:
            if not self._open:
                raise self._closed()
            changing, current = self._changing, self._subscription
            if changing is None or changing.done():
                alive = current if current is not None and current.over is None else None
                wanted = min(limit + (alive.given if alive else 0), self._prefetch)
                if alive is not None and (alive.waiting or alive.prefetch >= wanted):
                    return alive
                changing = self._change(self._subscribe(wanted))
            await asyncio.shield(changing)

    def _change(self, change: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        def changed(task: asyncio.Task[None]) -> None:
            if self._changing is task:
                self._changing = None
            if not task.cancelled():
                task.exception()  # whoever waits gets it; nobody may be waiting
            self._arrived()

        self._changing = asyncio.create_task(change)
        self._changing.add_done_callback(changed)
        return self._changing

    async def _subscribe(self, prefetch: int) -> None:
        current = self._subscription
        try:
            if current is None or current.over is not None:
                if current is not None:
                    await current.close(current.over or self._closed())
                channel = await self._link.channel()
                current = Subscription(channel, self.name, self._arrived, self._link.unavailable)
                self._subscription = current
            await current.consume(prefetch)
        except ConfigError as error:
            # It worked when the source was opened: somebody is changing it, so it may work again.
            raise BrokerUnavailable(str(error)) from None
        except LOST as error:
            raise self._link.unavailable(error) from None

    async def _rest(self, subscription: Subscription) -> None:
        try:
            await subscription.rest()
        except LOST as error:
            subscription.end(self._link.unavailable(error))

    def _arrived(self) -> None:
        """Something waits, and maybe nobody takes it: a paused consumer must not hold back what others could do."""
        subscription = self._subscription
        if self._receiving or self._idle or self._changing or not self._open or subscription is None:
            return
        if subscription.waiting:
            self._idle = asyncio.get_running_loop().call_later(
                self.idle_seconds, self._went_idle, subscription
            )

    def _went_idle(self, subscription: Subscription) -> None:
        self._idle = None
        if self._open and not self._receiving and self._changing is None:
            self._change(self._rest(subscription))

    def _calm(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    # Delays.

    def _hold(self, subscription: Subscription, number: int, seconds: float) -> None:
        async def later() -> None:
            await asyncio.sleep(seconds)
            await subscription.requeue([number])

        subscription.held.add(number)
        task = asyncio.create_task(later())
        self._held.add(task)
        task.add_done_callback(self._held.discard)

    # Small change.

    def _delivery(self, subscription: Subscription, message: DeliveredMessage) -> Delivery:
        tag = Tag(subscription, message.delivery_tag or 0, message)
        return to_delivery(message, self.name, self._key_header, counts=self.counts_deliveries, tag=tag)

    def _numbers(self, subscription: Subscription, deliveries: Sequence[Delivery]) -> list[int]:
        """Of these, what is this channel's to answer; the rest was lost with another, and comes again."""
        return [
            delivery.tag.number
            for delivery in deliveries
            if delivery.tag.subscription is subscription and delivery.tag.number in subscription.unanswered
        ]

    def _closed(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"the source of queue {self.name!r} is not open")
