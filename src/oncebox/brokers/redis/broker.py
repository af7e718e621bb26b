"""`Redis`: one server that gives sources and sinks."""

from __future__ import annotations

from typing import Any

from oncebox.brokers.redis.connection import Server
from oncebox.brokers.redis.entries import PAYLOAD
from oncebox.brokers.redis.sink import RedisTopic
from oncebox.brokers.redis.source import RedisSource
from oncebox.identity import Identity, Resolver


class Redis:
    """Redis 7 or newer at `url`: redis://, rediss:// or unix://. Opens nothing until it is used.

    Every other word goes to redis-py as it is (`username`, `password`, `ssl_ca_certs`, …).
    `ConfigError` for what is no Redis address.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._server = Server(url, options)

    def stream(
        self,
        name: str,
        *,
        group: str,
        type: str | Resolver | None = None,  # noqa: A002 - the word that every source uses
        identity: Identity | None = None,
        payload: str = PAYLOAD,
        create: bool = False,
        delete: bool = False,
        visibility_seconds: float = 30.0,
        dead_letter: str | None = None,
    ) -> RedisSource:
        """A source: a consumer of the group `group` of the stream `name`.

        - `type`, `identity`: how messages are told apart, where they don't say it themselves;
        - `payload`: the field that is the body, in entries of other producers;
        - `create`: make stream and group when they are missing;
        - `delete`: remove entries from the stream when they are acked; refused where other groups read it;
        - `visibility_seconds` (30): how long a delivery may go unanswered before another consumer claims it;
        - `dead_letter`: a stream that gets a copy of every message that is dead for its consumer.

        `ConfigError` for a value that can't be.
        """
        return RedisSource(
            self._server,
            name,
            group,
            type=type,
            identity=identity,
            payload=payload,
            create=create,
            delete=delete,
            visibility_seconds=visibility_seconds,
            dead_letter=dead_letter,
        )

    def topic(self, name: str, *, create: bool = False) -> RedisTopic:
        """A sink: appends to the stream `name`; with `create`, the first message makes it when missing."""
        return RedisTopic(self._server, name, create=create)
