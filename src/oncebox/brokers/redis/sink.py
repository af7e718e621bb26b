"""A stream as a sink: one entry per message, confirmed by its entry id."""

from __future__ import annotations

from collections.abc import Sequence

from redis import exceptions
from redis.asyncio import Redis as Client

from oncebox.brokers.destination import topic_of
from oncebox.brokers.redis.connection import TRANSFER_SECONDS, Server
from oncebox.brokers.redis.entries import fields_of
from oncebox.brokers.redis.topology import check_server, find_stream
from oncebox.errors import BrokerError, BrokerUnavailable, ConfigError, QueueFull
from oncebox.message import Message


class RedisTopic:
    """Appends to one stream; a message with a topic of its own goes to the stream of that name."""

    def __init__(self, server: Server, stream: str, *, create: bool) -> None:
        if not stream:
            raise ConfigError("a Redis stream has a name, not ''")
        self.name = stream
        self._server = server
        self.creates = create
        self._client: Client | None = None

    async def open(self) -> None:
        """Connect, and check that the stream is there; `ConfigError` with how to make it."""
        if self._client is not None:
            return
        # Nothing is sent twice behind our back: what was not confirmed is the relay's to send again.
        client = self._server.client(again=False)
        try:
            async with self._server.asking():
                await check_server(client, self._server)
                await find_stream(client, self._server, self.name, self.creates)
        except BaseException:
            await client.aclose()
            raise
        self._client = client

    async def close(self) -> None:
        """Disconnect."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def publish(self, messages: Sequence[Message]) -> list[BaseException | None]:
        """See `Sink.publish`. An entry id is the confirmation; how durable it is, the server's settings say."""
        if self._client is None:
            raise BrokerUnavailable(f"the sink of stream {self.name!r} is not open")
        if not messages:
            return []
        pipeline = self._client.pipeline(transaction=False)
        streams = [topic_of(message) or self.name for message in messages]
        for stream, message in zip(streams, messages, strict=True):
            words = () if self.creates else ("NOMKSTREAM",)
            pipeline.execute_command("XADD", stream, *words, "*", *fields_of(message))
        try:
            async with self._server.asking(TRANSFER_SECONDS):
                replies = await pipeline.execute(raise_on_error=False)
        except ConfigError as error:
            raise BrokerUnavailable(str(error)) from error
        return [self._outcome(stream, reply) for stream, reply in zip(streams, replies, strict=True)]

    def _outcome(self, stream: str, reply: object) -> BaseException | None:
        if isinstance(reply, exceptions.OutOfMemoryError):
            return QueueFull(f"{self._server.where} is out of memory: stream {stream!r} takes nothing more")
        if isinstance(reply, BaseException):
            return BrokerError(f"stream {stream!r}: {reply}")
        if reply is None:
            return BrokerError(f"stream {stream!r} does not exist; create it, or pass create=True")
        return None
