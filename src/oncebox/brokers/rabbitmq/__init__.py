"""RabbitMQ: queues to consume from, exchanges to publish to (extra `oncebox[rabbitmq]`).

Works on aiormq, the protocol layer of aio-pika: its robust connections decide by themselves when to
consume again, which is the runtime's decision here. `docs/how-to/brokers/rabbitmq.md` shows the use.
"""

from __future__ import annotations

from collections.abc import Callable

try:
    import aiormq  # noqa: F401 - only to say early, and in plain words, that it is missing
except ImportError as error:  # pragma: no cover
    raise ImportError("oncebox.brokers.rabbitmq needs aio-pika: pip install 'oncebox[rabbitmq]'") from error

from oncebox.brokers.contract import bound_identity
from oncebox.brokers.rabbitmq.connection import Link
from oncebox.brokers.rabbitmq.sink import RabbitSink
from oncebox.brokers.rabbitmq.source import RabbitSource
from oncebox.brokers.rabbitmq.topology import Kind, QueueWords
from oncebox.brokers.rabbitmq.wire import KEY_HEADER
from oncebox.errors import ConfigError
from oncebox.identity import Identity, Resolver
from oncebox.message import Message

__all__ = ["RabbitMQ", "RabbitSink", "RabbitSource"]


class RabbitMQ:
    """One RabbitMQ: `amqp://user:password@host:5672/vhost`, or `amqps://`. Opens nothing when made.

    What consumes shares one connection, what publishes another: a broker that is short of memory stops
    reading from those who publish, and acks must still get through. `ConfigError` for a URL that is none.
    """

    def __init__(self, url: str) -> None:
        self._consuming = Link(url, "oncebox consumer")
        self._publishing = Link(url, "oncebox publisher")

    def queue(
        self,
        name: str,
        *,
        type: str | Resolver | None = None,  # noqa: A002 - the word that every source uses
        identity: Identity | None = None,
        prefetch: int | None = None,
        key: str = KEY_HEADER,
        create: bool = False,
        kind: Kind | None = None,
        dead_letter_exchange: str | None = None,
        delivery_limit: int | None = None,
        single_active_consumer: bool | None = None,
    ) -> RabbitSource:
        """A new subscription to the queue `name`.

        `type` and `identity` say how messages are told apart, where they don't say it themselves.
        `prefetch` bounds what this subscription may hold unanswered; None leaves it to the caller.
        `key` is the header that holds the ordering key. The other words say what the queue is: they are
        checked when the source opens, and with `create=True` a missing queue is declared by them
        (`kind` is then "quorum" unless "classic" is said). Messages that are dead go to a
        `dead_letter_exchange` that was said here, too.
        """
        if not name:
            raise ConfigError("a queue has a name")
        if prefetch is not None and not 1 <= prefetch <= 65_535:
            raise ConfigError(f"queue {name!r}: prefetch={prefetch!r}; it is from 1 to 65,535, or None")
        words = QueueWords(
            name=name,
            create=create,
            kind=kind,
            dead_letter_exchange=dead_letter_exchange,
            delivery_limit=delivery_limit,
            single_active_consumer=single_active_consumer,
        )
        bound = bound_identity(identity, type)
        return RabbitSource(self._consuming, self._publishing, words, bound, prefetch, key)

    def exchange(
        self,
        name: str,
        *,
        routing_key: str | Callable[[Message], str] | None = None,
        create: bool = False,
        type: str = "topic",  # noqa: A002 - AMQP's word
    ) -> RabbitSink:
        """A sink that publishes to the exchange `name`, each message under its type as routing key.

        `routing_key` is another key, or a function of the message; the exchange "" takes the name of a
        queue. With `create=True` a missing exchange of that `type` is declared.
        """
        if not name and (routing_key is None or create):
            raise ConfigError("the default exchange is there already, and needs routing_key=<queue>")
        return RabbitSink(self._publishing, name, routing_key, create, type)
