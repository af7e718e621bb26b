"""An exchange to publish to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiormq.exceptions import ChannelAccessRefused, ChannelNotFoundEntity, ChannelPreconditionFailed

from oncebox.brokers.destination import topic_of
from oncebox.brokers.rabbitmq.connection import LOST, Link, answered
from oncebox.brokers.rabbitmq.publisher import Letter, Publisher
from oncebox.brokers.rabbitmq.wire import SHORT_BYTES_MAX, to_amqp
from oncebox.errors import ConfigError, MessageError
from oncebox.message import Message


class RabbitSink:
    """An exchange. Every message is persistent, mandatory and confirmed: one that no queue is bound for
    is an error of that message, and of no other."""

    def __init__(
        self,
        link: Link,
        exchange: str,
        routing_key: str | Callable[[Message], str] | None,
        create: bool,
        kind: str,
    ) -> None:
        self.name = exchange or f"default exchange of {link.where}"
        self._link = link
        self._exchange = exchange
        self._routing_key = routing_key
        self.creates = create
        self._kind = kind
        self._publisher = Publisher(link)

    async def open(self) -> None:
        """Connect, and see that the exchange is there; see `Sink.open`."""
        try:
            await self._check()
        except BaseException:
            await self.close()
            raise

    async def _check(self) -> None:
        try:
            channel = await self._publisher.channel()
            if self._exchange:
                async with answered():
                    await channel.exchange_declare(
                        self._exchange, exchange_type=self._kind, durable=True, passive=not self.creates
                    )
        except ChannelNotFoundEntity:
            raise ConfigError(
                f"there is no exchange {self._exchange!r} in vhost {self._link.vhost!r} of {self._link.where}: "
                f"declare it, or let oncebox do it with exchange({self._exchange!r}, create=True)"
            ) from None
        except ChannelAccessRefused:
            raise ConfigError(
                f"user {self._link.user!r} may not declare exchange {self._exchange!r}"
            ) from None
        except ChannelPreconditionFailed:
            raise ConfigError(
                f"exchange {self._exchange!r} is there, but not as a durable {self._kind!r} exchange; say its type"
            ) from None
        except LOST as error:
            raise self._link.unavailable(error) from None

    async def close(self) -> None:
        """See `Sink.close`."""
        await self._publisher.close()

    async def publish(self, messages: Sequence[Message]) -> list[BaseException | None]:
        """See `Sink.publish`; `QueueFull` when a queue on the way refuses, `BrokerError` when none is bound."""
        replies: list[BaseException | None] = [None] * len(messages)
        letters: list[Letter] = []
        places: list[int] = []
        for place, message in enumerate(messages):
            try:
                letters.append(self._letter(message))
                places.append(place)
            except MessageError as error:
                replies[place] = error
        for place, reply in zip(places, await self._publisher.publish(letters), strict=True):
            replies[place] = reply
        return replies

    def _letter(self, message: Message) -> Letter:
        chosen = topic_of(message) or self._routing_key
        if callable(chosen):
            chosen = chosen(message)
        key = message.type if chosen is None else chosen
        if len(key.encode()) > SHORT_BYTES_MAX:
            raise MessageError(
                f"message {message.id}: a routing key of {len(key.encode())} bytes; AMQP takes {SHORT_BYTES_MAX}"
            )
        return Letter(self._exchange, key, to_amqp(message), message.payload)
