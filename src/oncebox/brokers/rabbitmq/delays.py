"""Where a message waits for its next delivery: queues whose messages expire into the one they came from."""

from __future__ import annotations

import logging
import math
from typing import Any

from aiormq.abc import DeliveredMessage

from oncebox.brokers.rabbitmq.connection import LOST, Link, answered
from oncebox.brokers.rabbitmq.publisher import Letter, Publisher
from oncebox.brokers.rabbitmq.wire import copy_of
from oncebox.errors import BrokerUnavailable, ConfigError

log = logging.getLogger("oncebox")

DELAY_MAX_SECONDS = 2**31 / 1000
"""RabbitMQ keeps no message for more than 2**32 milliseconds."""


class DelayQueues:
    """The delay queues of one queue, declared when they are first needed, and kept."""

    def __init__(self, link: Link, queue: str) -> None:
        self._queue = queue
        self._publisher = Publisher(link)
        self._warned = False

    async def close(self) -> None:
        """Let the connection go; what waits is the broker's."""
        await self._publisher.close()

    async def send(self, message: DeliveredMessage, deliveries: int, seconds: float) -> bool:
        """Put a copy where it waits by itself, and return when the broker has it.

        False when that can't be: the delivery itself must wait.
        """
        milliseconds = step_milliseconds(seconds)
        queue = f"{self._queue}.oncebox-delay.{milliseconds}"
        reply: BaseException | None
        try:
            channel = await self._publisher.channel()
            if queue not in self._publisher.declared:
                async with answered():
                    arguments = delay_arguments(self._queue, milliseconds)
                    await channel.queue_declare(queue, durable=True, arguments=arguments)
                self._publisher.declared.add(queue)
            letter = Letter("", queue, copy_of(message, deliveries), message.body)
            [reply] = await self._publisher.publish([letter])
            if reply is None:
                return True
            self._publisher.declared.discard(queue)
        except (*LOST, BrokerUnavailable, ConfigError, TypeError, ValueError) as error:
            reply = error
        if not self._warned:
            self._warned = True
            log.warning("queue %s: no delay queue (%s); messages wait in this process", self._queue, reply)
        return False


def step_milliseconds(seconds: float) -> int:
    """The delay of the queue to wait in: the next power of the square root of two, at least as long.

    One queue per delay, since a queue expires messages at its head only: a short delay behind a long one
    would wait for it. Steps keep the queues few: 43 from a second to 24 days.
    """
    wanted = min(seconds, DELAY_MAX_SECONDS) * 1000.0
    return math.ceil(2 ** (math.ceil(2 * math.log2(wanted)) / 2))


def delay_arguments(queue: str, milliseconds: int) -> dict[str, Any]:
    """A queue that moves its messages to `queue` when they have waited, and loses none on the way."""
    return {
        "x-queue-type": "quorum",
        "x-message-ttl": milliseconds,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
