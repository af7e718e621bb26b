"""The child's side of one connection to a served `Memory`: numbered requests, and batched acks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

from oncebox.brokers.frames import (
    STREAM_BYTES,
    Ack,
    Bye,
    Cancel,
    Delivered,
    Done,
    Failed,
    Frame,
    Hello,
    Receive,
    Release,
    Reply,
    Request,
    Welcome,
    encode,
    raised,
    read_reply,
)
from oncebox.errors import BrokerUnavailable, ConfigError

CONNECT_SECONDS = 10.0
BYE_SECONDS = 5.0

T = TypeVar("T", bound=Reply)


class Address:
    """Where a `Memory` is served, and the secret that opens it. Shown without the secret."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._secret = parts.path.removeprefix("/")
        if parts.scheme != "memory" or not parts.hostname or not parts.port or not self._secret:
            # The address itself stays out of the text: it may hold the secret.
            raise ConfigError(
                "not the address of a served Memory: pass what `async with memory.serve()` gives"
            )
        self.host, self.port = parts.hostname, parts.port

    def __str__(self) -> str:
        return f"memory://{self.host}:{self.port}"

    async def connect(self, queue: str | None = None, prefetch: int | None = None) -> Link:
        """A connection for a queue, or a control line.

        Raises `BrokerUnavailable` when nobody answers or the secret is refused, `ConfigError` when
        there is no such queue.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(self.host, self.port, limit=STREAM_BYTES)
                try:
                    writer.write(encode(Hello(self._secret, queue, prefetch)))
                    welcome = await read_reply(reader)
                except BaseException:
                    writer.transport.abort()
                    raise
        except (TimeoutError, EOFError, OSError, ValueError) as error:
            raise BrokerUnavailable(f"{self} is not served, or not to this process ({error})") from error
        if isinstance(welcome, Welcome):
            return Link(str(self), reader, writer, welcome)
        writer.transport.abort()
        if isinstance(welcome, Failed):
            raise raised(welcome.failure)
        raise BrokerUnavailable(f"{self} answered {type(welcome).__name__} instead of a welcome")


class Link:
    """One open connection. Belongs to the event loop that opened it."""

    def __init__(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, welcome: Welcome
    ) -> None:
        self.welcome = welcome
        self._name = name
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._acks: list[int] = []
        self._lost: str | None = None
        self._reading = asyncio.create_task(self._read(), name=f"{name} replies")

    @property
    def alive(self) -> bool:
        """False once the connection is known to be lost."""
        return self._lost is None

    async def call(self, make: Callable[[int], Request], kind: type[T]) -> T:
        """Send a request and wait for its reply; raises what the server refused it with.

        A cancelled receive holds nothing back: what was taken for it, even too late, is released.
        """
        number = next(self._numbers)
        request = make(number)
        self._send(request)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            reply = await waiting
        except asyncio.CancelledError:
            if isinstance(request, Receive):
                self._give_up(number, waiting)
            raise
        finally:
            self._waiting.pop(number, None)
        if isinstance(reply, Failed):
            raise raised(reply.failure)
        if not isinstance(reply, kind):
            raise BrokerUnavailable(f"{self._name} answered {type(reply).__name__}, not {kind.__name__}")
        return reply

    async def tell(self, frame: Frame) -> None:
        """Send what has no reply. Says nothing when the connection is lost: the server knows already."""
        if self.alive:
            self._send(frame)
            await self._drain()

    async def ack(self, tags: list[int]) -> None:
        """Ack soon: all acks of one turn of the loop travel together."""
        if not self.alive:
            return
        if not self._acks:
            asyncio.get_running_loop().call_soon(self._flush)
        self._acks += tags
        await self._drain()

    async def close(self) -> None:
        """Say goodbye, so that what is not answered is released uncounted; then hang up."""
        try:
            with contextlib.suppress(TimeoutError, BrokerUnavailable):
                async with asyncio.timeout(BYE_SECONDS):
                    await self.call(Bye, Done)
        finally:
            self.drop("closed")
            self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def drop(self, why: str) -> None:
        """Hang up without a goodbye; whoever waits for a reply gets `BrokerUnavailable`."""
        if self._lost is not None:
            return
        self._lost = why
        self._acks.clear()
        self._writer.transport.abort()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(BrokerUnavailable(f"{self._name}: the connection is lost ({why})"))

    async def _read(self) -> None:
        why = "no more replies are read"
        try:
            while True:
                reply = await read_reply(self._reader)
                if isinstance(reply, Welcome):
                    continue
                waiting = self._waiting.get(reply.request)
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
                elif isinstance(reply, Delivered) and self.alive:
                    self._release(reply)
        except (EOFError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
        finally:
            self.drop(why)

    def _give_up(self, number: int, waiting: asyncio.Future[Reply]) -> None:
        if not self.alive:
            return
        if waiting.cancelled() or not waiting.done():
            self._send(Cancel(number))
        elif waiting.exception() is None and isinstance(reply := waiting.result(), Delivered):
            self._release(reply)

    def _release(self, reply: Delivered) -> None:
        self._send(Release([delivery.tag for delivery in reply.deliveries]))

    def _flush(self) -> None:
        if self._acks and self.alive:
            tags, self._acks = self._acks, []
            self._writer.write(encode(Ack(tags)))

    def _send(self, frame: Frame) -> None:
        if self._lost is not None:
            raise BrokerUnavailable(f"{self._name}: the connection is lost ({self._lost})")
        data = encode(frame)
        # Acks given before this frame are heard before it.
        self._flush()
        self._writer.write(data)

    async def _drain(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.drain()
