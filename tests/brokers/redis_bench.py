"""Redis Streams on a bench: one stream with one group per test, on a server that many tests share."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest
from redis.asyncio import Redis as Client

from oncebox.brokers.contract import Delivery, Source
from oncebox.brokers.redis import Redis, RedisSource
from oncebox.brokers.redis.connection import Server
from oncebox.brokers.redis.entries import fields_of
from oncebox.message import Message
from tests.brokers.suite import Bench, Features
from tests.conftest import missing
from tests.servers.process import Unavailable
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One per xdist worker; never kill this one."""
    with make_server() as server:
        yield server


def make_server(*settings: str, **words: Any) -> RedisServer:
    """A server of one's own; without the binary, the test is skipped."""
    try:
        return RedisServer(*settings, **words)
    except Unavailable as error:
        missing(error)


@asynccontextmanager
async def redis_of(url: str) -> AsyncIterator[Client]:
    """For looking at the server from outside."""
    client = Server(url, {}).client(again=True)
    try:
        yield client
    finally:
        await client.aclose()


class RedisBench(Bench):
    features = Features()
    hasty_seconds = 1.4
    delay_seconds = 1.4
    slack_seconds = 0.7
    control: Client

    def __init__(self, server: RedisServer) -> None:
        super().__init__()
        self.server = server
        self.stream = f"payments-{os.getpid()}-{next(_NUMBERS)}"
        self._ways: dict[int, Proxy] = {}

    async def __aenter__(self) -> Self:
        self.control = await self.stack.enter_async_context(redis_of(self.server.url))
        self.stack.push_async_callback(self.control.delete, self.stream)
        return self

    def make_source(self) -> Source:
        """Through a way of its own, which can be cut."""
        way = Proxy(self.server.port)
        self.stack.callback(way.close)
        source = Redis(way.through(self.server.url)).stream(
            self.stream, group="billing", create=True, visibility_seconds=self.visibility_seconds
        )
        self._ways[id(source)] = way
        return source

    async def publish(self, *messages: Message | Delivery, duplicates: int = 0) -> None:
        pipeline = self.control.pipeline(transaction=False)
        for message in [message for message in messages for _ in range(1 + duplicates)]:
            pipeline.execute_command("XADD", self.stream, "*", *_fields(message))
        await pipeline.execute()

    async def pass_seconds(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def heard(self, source: Source) -> None:
        assert isinstance(source, RedisSource)
        await source.flush()

    async def lose(self, source: Source) -> None:
        self._ways[id(source)].cut()


def _fields(message: Message | Delivery) -> list[bytes]:
    if isinstance(message, Message):
        return fields_of(message)
    fields = [b"payload", message.body]
    for name, value in message.headers:
        fields += [f"header:{name}".encode(), value]
    return fields
