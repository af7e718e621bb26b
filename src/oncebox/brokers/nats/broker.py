"""`Nats`: one connection that gives sources and sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncebox.brokers.nats.connection import Connection
from oncebox.brokers.nats.sink import NatsSubject
from oncebox.brokers.nats.source import NatsSource
from oncebox.errors import ConfigError
from oncebox.identity import Identity, Resolver


class Nats:
    """NATS JetStream at `url`, or at several urls of one cluster. Opens nothing until it is used.

    `domain` is a JetStream domain; every other word goes to nats-py's `connect` as it is
    (`user_credentials`, `token`, `tls`, …). `ConfigError` for what is no NATS address.
    """

    def __init__(self, url: str | Sequence[str], *, domain: str | None = None, **options: Any) -> None:
        servers = [url] if isinstance(url, str) else list(url)
        if not servers:
            raise ConfigError("Nats([]): name at least one server, such as nats://localhost:4222")
        self._connection = Connection(servers, domain, options)

    def stream(
        self,
        name: str,
        *,
        consumer: str,
        subject: str | None = None,
        type: str | Resolver | None = None,  # noqa: A002 - the word that every source uses
        identity: Identity | None = None,
        create: bool = False,
        visibility_seconds: float | None = None,
        double_ack: bool = False,
        dead_letter: str | None = None,
    ) -> NatsSource:
        """A source: the durable pull consumer `consumer` of the stream `name`.

        - `subject`: what the consumer is to take of the stream; all of it without;
        - `type`, `identity`: how messages are told apart, where they don't say it themselves;
        - `create`: make stream and consumer when they are missing;
        - `visibility_seconds` (30 when created): the consumer's `ack_wait`;
        - `double_ack`: wait for the server's word on every ack;
        - `dead_letter`: a subject that gets a copy of every message that is dead for its consumer.

        `ConfigError` for a value that can't be.
        """
        return NatsSource(
            self._connection,
            name,
            consumer,
            subject=subject,
            type=type,
            identity=identity,
            create=create,
            visibility_seconds=visibility_seconds,
            double_ack=double_ack,
            dead_letter=dead_letter,
        )

    def subject(self, name: str, *, stream: str | None = None, create: bool = False) -> NatsSubject:
        """A sink: publishes to this subject, in which `{type}`, `{key}` and `{source}` stand for the
        message's own. `stream` says which stream must take it; with `create` it is made when missing.
        """
        return NatsSubject(self._connection, name, stream=stream, create=create)
