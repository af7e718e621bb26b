"""Messages that were delivered too often, moved to a subject of their own."""

from __future__ import annotations

import logging

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from oncebox.brokers.nats.confirms import confirm
from oncebox.brokers.nats.connection import Connection, Link
from oncebox.brokers.nats.headers import Pairs, incoming
from oncebox.brokers.nats.topology import ask
from oncebox.errors import BrokerError, ConfigError

log = logging.getLogger("oncebox")

_TERM = b"+TERM"
_AGAIN = b'-NAK {"delay": 5000000000}'


class DeadLetter:
    """`deliveries_max` with `dead_letter`: after so many deliveries a message moves to that subject."""

    def __init__(self, connection: Connection, deliveries_max: int, subject: str) -> None:
        if deliveries_max < 1:
            raise ConfigError(f"deliveries_max={deliveries_max!r}: it is at least 1, or None")
        self._connection = connection
        self._deliveries_max = deliveries_max
        self._subject = subject

    @classmethod
    def of(cls, connection: Connection, deliveries_max: int | None, subject: str | None) -> DeadLetter | None:
        """From the words of a binding, which go together."""
        if deliveries_max is None and subject is None:
            return None
        if deliveries_max is None or subject is None:
            raise ConfigError("deliveries_max and dead_letter go together: set both, or neither")
        return cls(connection, deliveries_max, subject)

    async def check(self, js: JetStreamContext, stream: str) -> None:
        """`ConfigError` unless another stream takes the subject: in this one the message's id is known,
        and the server would drop it as a duplicate."""
        where = self._connection.where
        try:
            found = await ask(where, js.find_stream_name_by_subject(self._subject))
        except NotFoundError:
            raise ConfigError(
                f"no stream on {where} takes dead_letter={self._subject!r}; create one "
                f"(nats stream add DEAD --subjects '{self._subject}')"
            ) from None
        if found == stream:
            raise ConfigError(
                f"dead_letter={self._subject!r} is in stream {stream!r} itself, which would drop the message as a "
                "duplicate; give it a stream of its own"
            )

    def takes(self, message: Msg) -> bool:
        """Whether it came once too often."""
        return message.metadata.num_delivered > self._deliveries_max

    async def bury(self, link: Link, message: Msg) -> None:
        """Publish it with id and headers as they are, then tell the server to deliver it no more."""
        where = message.metadata
        pairs = [
            *(pair for pair in incoming(message.headers) if not pair[0].lower().startswith("nats-expected")),
            ("oncebox-dead-stream", where.stream.encode()),
            ("oncebox-dead-id", str(where.sequence.stream).encode()),
            ("oncebox-dead-deliveries", str(where.num_delivered - 1).encode()),
        ]
        try:
            [failed] = await confirm(link, [(self._subject, message.data, Pairs(pairs))])
            if failed is not None:
                raise failed
            await link.publish(message.reply, _TERM)
        except (nats.errors.Error, BrokerError, OSError) as error:
            log.error("stream %s: message %s can't be moved: %s", where.stream, where.sequence.stream, error)
            if link.is_connected:
                await link.publish(message.reply, _AGAIN)
        else:
            log.error(
                "stream %s: message %s was delivered %d times and moved to %s",
                where.stream,
                where.sequence.stream,
                where.num_delivered - 1,
                self._subject,
            )
