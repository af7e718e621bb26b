"""One channel's worth of consuming: what has arrived, what is unanswered, and how answers are sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp.commands import Basic

from oncebox.brokers.rabbitmq.connection import LOST, answered, closed
from oncebox.errors import BrokerUnavailable


class Subscription:
    """A channel that consumes one queue. When the channel is lost it is over, and another one begins."""

    def __init__(
        self, channel: AbstractChannel, queue: str, arrived: Callable[[], None], lost: Callable[[], Exception]
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.prefetch = 0
        """What the broker may send ahead of our answers; 0 while it sends nothing."""
        self.waiting: deque[DeliveredMessage] = deque()
        """Arrived, and not given to anybody yet."""
        self.unanswered: dict[int, None] = {}
        """Delivery tags in the order they came, those that wait included."""
        self.held: set[int] = set()
        """Nacked, and waiting here for their delay."""
        self.over: Exception | None = None
        self._arrived = arrived
        self._news = asyncio.Event()
        self._consumer = ""
        channel.closing.add_done_callback(lambda _: self.end(lost()))
        channel.on_consumer_cancel_callbacks.add(self._cancelled)

    async def consume(self, prefetch: int) -> None:
        """Have the broker send, `prefetch` unanswered at most. Raises what aiormq raises."""
        async with answered():
            await self._stop()
            await self.channel.basic_qos(prefetch_count=prefetch)
            started = await self.channel.basic_consume(self.queue, self._take_in)
        self._consumer = started.consumer_tag or ""
        self.prefetch = prefetch

    async def rest(self) -> None:
        """Have the broker send nothing more, and give back what nobody asked for."""
        async with answered():
            await self._stop()
            back = [self._tag(message) for message in self.waiting]
            self.waiting.clear()
        await self.requeue(back)

    async def _stop(self) -> None:
        if self.prefetch:
            self.prefetch = 0
            await self.channel.basic_cancel(self._consumer)

    async def _take_in(self, message: DeliveredMessage) -> None:
        self.unanswered[self._tag(message)] = None
        self.waiting.append(message)
        self._news.set()
        self._arrived()

    @property
    def given(self) -> int:
        """How many the caller has in hand."""
        return len(self.unanswered) - len(self.waiting) - len(self.held)

    def take(self, limit: int) -> list[DeliveredMessage]:
        """What is there, without waiting."""
        return [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]

    async def arrival(self) -> None:
        """Until something is there. Raises why the subscription is over."""
        while not self.waiting:
            if self.over is not None:
                raise self.over
            self._news.clear()
            await self._news.wait()

    def end(self, why: Exception) -> None:
        """Nothing more comes, and answers are pointless: the broker delivers again what was unanswered."""
        if self.over is None:
            self.over = why
        self.prefetch = 0
        self.waiting.clear()
        self.unanswered.clear()
        self.held.clear()
        self._news.set()

    def _cancelled(self, _: Basic.Cancel) -> None:
        """The queue was deleted, or lost its leader. What is unanswered can still be answered."""
        self.prefetch = 0
        self.over = BrokerUnavailable(
            f"queue {self.queue!r}: RabbitMQ ended the subscription; was it deleted?"
        )
        self._news.set()

    async def ack(self, tags: Iterable[int]) -> None:
        """Answer for good. A run from the oldest unanswered on is one frame."""
        done = {tag for tag in tags if tag in self.unanswered}
        last = 0
        for tag in self.unanswered:
            if tag not in done:
                break
            last = tag
        for tag in done:
            # All of them first: while an answer is sent, the channel may end and take the rest along.
            del self.unanswered[tag]
        for tag in sorted(tag for tag in done if tag >= last):
            await self._send(self.channel.basic_ack(tag, multiple=tag == last, wait=False))

    async def requeue(self, tags: Iterable[int]) -> None:
        """Give back, to be delivered again at once."""
        for tag in list(tags):
            # Looked up one by one: while an answer is sent, the channel may end and take the rest along.
            if tag in self.unanswered:
                await self._reject(tag, requeue=True)

    async def bury(self, tag: int) -> None:
        """Have the broker move it to the queue's dead-letter exchange."""
        if tag in self.unanswered:
            await self._reject(tag, requeue=False)

    async def _reject(self, tag: int, *, requeue: bool) -> None:
        del self.unanswered[tag]
        self.held.discard(tag)
        await self._send(self.channel.basic_nack(tag, requeue=requeue, wait=False))

    async def _send(self, sending: Awaitable[None]) -> None:
        """An answer that can't be sent needs none: the broker gives the message to somebody else."""
        try:
            async with answered():
                await sending
        except LOST:
            pass

    async def close(self, why: Exception) -> None:
        """End it in order; the broker gives back what was not answered."""
        self.end(why)
        await closed(self.channel)

    @staticmethod
    def _tag(message: DeliveredMessage) -> int:
        return message.delivery_tag or 0
