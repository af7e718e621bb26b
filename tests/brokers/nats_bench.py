"""NATS JetStream on a bench: one stream with one consumer per test, on a server that many tests share."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest
from nats.js import JetStreamContext

from oncebox.brokers.contract import Delivery, Source
from oncebox.brokers.nats import Nats, NatsSource
from oncebox.brokers.nats.confirms import confirm
from oncebox.brokers.nats.connection import Connection, Link
from oncebox.brokers.nats.headers import ID, Pairs, outgoing
from oncebox.message import Message
from tests.brokers.suite import Bench, Features
from tests.conftest import missing
from tests.servers.nats import NatsServer
from tests.servers.process import Unavailable
from tests.servers.proxy import Proxy

_NUMBERS = itertools.count(1)
DUPLICATE_WINDOW_SECONDS = 0.1
"""The shortest there is: the server drops a second message of an id within it."""


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """One per xdist worker; never kill this one."""
    with make_server(max_payload=12 * 1024 * 1024) as server:
        yield server


def make_server(**words: Any) -> NatsServer:
    """A server of one's own; without the binary, the test is skipped."""
    try:
        return NatsServer(**words)
    except Unavailable as error:
        missing(error)


class NatsBench(Bench):
    features = Features(releases_uncounted=False)
    hasty_seconds = 1.4
    delay_seconds = 1.4
    slack_seconds = 0.7

    def __init__(self, server: NatsServer) -> None:
        super().__init__()
        self.server = server
        self.stream = f"S{os.getpid()}N{next(_NUMBERS)}"
        self._control = Connection([server.url], None, {})
        self._ways: dict[int, Proxy] = {}

    async def __aenter__(self) -> Self:
        link = await self._control.join(self)
        self.stack.push_async_callback(self._control.leave, self)
        js = self._control.jetstream(link)
        await js.add_stream(
            name=self.stream, subjects=[f"{self.stream}.>"], duplicate_window=DUPLICATE_WINDOW_SECONDS
        )
        self.stack.push_async_callback(self._delete)
        return self

    async def _delete(self) -> None:
        # By a new connection where the server was restarted meanwhile.
        await self._control.jetstream(await self._control.link()).delete_stream(self.stream)

    def make_source(self) -> Source:
        """Through a way of its own, which can be cut."""
        way = Proxy(self.server.port)
        self.stack.callback(way.close)
        source = Nats(way.through(self.server.url)).stream(
            self.stream, consumer="billing", create=True, visibility_seconds=self.visibility_seconds
        )
        self._ways[id(source)] = way
        return source

    async def link(self) -> Link:
        """The bench's own connection."""
        return await self._control.link()

    async def publish(self, *messages: Message | Delivery, duplicates: int = 0) -> None:
        await self._send(*messages)
        for message in [message for message in messages for _ in range(duplicates)]:
            # The server forgets an id when it comes to it, and confirms what it drops: until it has one more.
            before = await self._last()
            while await self._last() == before:
                await asyncio.sleep(DUPLICATE_WINDOW_SECONDS)
                await self._send(message)

    async def _send(self, *messages: Message | Delivery) -> None:
        letters = [(f"{self.stream}.paid", _body(each), _headers(each)) for each in messages]
        assert await confirm(await self._control.link(), letters) == [None] * len(letters)

    async def _last(self) -> int:
        """The number of the stream's last message."""
        info = await self._control.jetstream(await self._control.link()).stream_info(self.stream)
        return int(info.state.last_seq)

    async def pass_seconds(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def heard(self, source: Source) -> None:
        assert isinstance(source, NatsSource)
        await source.flush()

    async def lose(self, source: Source) -> None:
        self._ways[id(source)].cut()


@asynccontextmanager
async def nats_of(url: str) -> AsyncIterator[JetStreamContext]:
    """For looking at the server from outside."""
    connection, user = Connection([url], None, {}), object()
    link = await connection.join(user)
    try:
        yield connection.jetstream(link)
    finally:
        await connection.leave(user)


def _body(message: Message | Delivery) -> bytes:
    return message.payload if isinstance(message, Message) else message.body


def _headers(message: Message | Delivery) -> Pairs:
    if isinstance(message, Message):
        return outgoing(message, 1 << 30)
    identity = message.properties.get("message_id")
    return Pairs([*([(ID, identity.encode())] if identity else []), *message.headers])
