"""The parent's side of a shared `Memory`: one task per connection, one connection per subscription.

A connection that ends without a goodbye is a consumer that died: what it held comes back at once and
counted, as with a real broker whose channel closes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from oncebox.brokers.frames import (
    BATCH_BYTES_MAX,
    STREAM_BYTES,
    Ack,
    Answer,
    Ask,
    Bye,
    Cancel,
    Delivered,
    Done,
    Extend,
    Failed,
    Figures,
    Frame,
    Hello,
    Nack,
    Put,
    Receive,
    Release,
    Request,
    Route,
    Sync,
    Welcome,
    encode,
    failure,
    read_hello,
    read_request,
)
from oncebox.brokers.hub import Hub
from oncebox.errors import BrokerError, ConfigError, OnceboxError

HELLO_SECONDS = 5.0
CONNECTIONS_MAX = 1024
RECEIVES_MAX = 64
"""Receives that may wait on one connection; a source makes one at a time per worker."""


@asynccontextmanager
async def serve(hub: Hub) -> AsyncIterator[str]:
    """Serve the hub to other processes of this machine; gives the address, with its secret."""
    server = _Server(hub, secrets.token_hex(32))
    listener = await asyncio.start_server(server.connected, "127.0.0.1", 0, limit=STREAM_BYTES)
    port = listener.sockets[0].getsockname()[1]
    try:
        yield f"memory://127.0.0.1:{port}/{server.secret}"
    finally:
        listener.close()
        await server.stop()
        await listener.wait_closed()


class _Server:
    """Lets those in who know the secret, and ends all of them when it stops."""

    def __init__(self, hub: Hub, secret: str) -> None:
        self.secret = secret
        self._hub = hub
        self._writers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._stopped = False

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._stopped or len(self._writers) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._writers[task] = writer
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await read_hello(reader)
            if secrets.compare_digest(hello.secret.encode(), self.secret.encode()):
                await _Connection(self._hub, reader, writer).run(hello)
        except (TimeoutError, EOFError, OSError, ValueError):
            # Gone, too slow or not speaking our frames: nothing to say to it.
            pass
        finally:
            del self._writers[task]
            writer.transport.abort()

    async def stop(self) -> None:
        """End every connection and wait until what they held is back."""
        self._stopped = True
        tasks = list(self._writers)
        for writer in self._writers.values():
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Connection:
    """One client: its subscription, if any, and its receives that wait."""

    def __init__(self, hub: Hub, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._hub = hub
        self._reader = reader
        self._writer = writer
        self._queue: str | None = None
        self._prefetch: int | None = None
        self._holder = 0
        self._receives: dict[int, asyncio.Task[None]] = {}

    async def run(self, hello: Hello) -> None:
        """Serve requests until the client says goodbye or is gone; then give back what it held."""
        try:
            self._send(self._begin(hello))
            while True:
                await self._writer.drain()
                request = await read_request(self._reader)
                if isinstance(request, Bye):
                    self._end(counted=False)
                    self._send(Done(request.request))
                    await self._writer.drain()
                    self._writer.close()
                    await self._writer.wait_closed()
                    return
                self._serve(request)
        finally:
            self._end(counted=True)
            await asyncio.gather(*self._receives.values(), return_exceptions=True)

    def _begin(self, hello: Hello) -> Frame:
        if hello.queue is None:
            return Welcome()
        try:
            options = self._hub.options(hello.queue)
        except ConfigError as error:
            return Failed(0, failure(error))
        self._queue, self._prefetch = hello.queue, hello.prefetch
        self._holder = self._hub.enter()
        return Welcome(options.retention_seconds, options.pins_keys)

    def _end(self, *, counted: bool) -> None:
        for task in self._receives.values():
            task.cancel()
        if self._queue is not None:
            self._hub.leave(self._queue, self._holder, counted=counted)

    def _serve(self, request: Request | Answer | Cancel) -> None:
        if isinstance(request, Ack | Nack | Release | Extend):
            self._answer(request)
        elif isinstance(request, Receive):
            self._start_receive(request)
        elif isinstance(request, Cancel):
            # Too late when it has just taken something: the reply goes out, and the client releases it.
            if (task := self._receives.get(request.request)) is not None:
                task.cancel()
        else:
            try:
                self._send(self._control(request))
            except (OnceboxError, ValueError) as error:
                self._send(Failed(request.request, failure(error)))

    def _control(self, request: Request) -> Frame:
        if isinstance(request, Put):
            self._hub.store(request.queue, request.messages, request.duplicates, request.delay_seconds)
        elif isinstance(request, Route):
            errors = self._hub.route(request.topic, request.messages)
            return Done(request.request, [None if error is None else failure(error) for error in errors])
        elif isinstance(request, Ask):
            return Figures(request.request, self._hub.stats())
        else:
            assert isinstance(request, Sync)
        return Done(request.request)

    def _answer(self, answer: Answer) -> None:
        if self._queue is None:
            return
        holder = self._holder
        if isinstance(answer, Ack):
            self._hub.answer(self._queue, lambda queue, now: queue.ack(answer.tags, holder, now))
        elif isinstance(answer, Nack):
            self._hub.answer(
                self._queue, lambda queue, now: queue.nack(answer.tag, answer.delay_seconds, holder, now)
            )
        elif isinstance(answer, Release):
            self._hub.answer(self._queue, lambda queue, now: queue.release(answer.tags, holder, now))
        else:
            self._hub.answer(
                self._queue, lambda queue, now: queue.extend(answer.tags, answer.seconds, holder, now)
            )

    def _start_receive(self, request: Receive) -> None:
        number = request.request
        if len(self._receives) >= RECEIVES_MAX or number in self._receives:
            error = BrokerError(f"{RECEIVES_MAX} receives wait on this connection already")
            self._send(Failed(number, failure(error)))
            return
        task = asyncio.create_task(self._receive(request))
        self._receives[number] = task
        task.add_done_callback(lambda _: self._receives.pop(number, None))

    async def _receive(self, request: Receive) -> None:
        if self._queue is None:
            self._send(Failed(request.request, failure(ConfigError("a control line has no queue"))))
            return
        try:
            deliveries = await self._hub.receive(
                self._queue, self._holder, request.limit, self._prefetch, BATCH_BYTES_MAX
            )
        except (OnceboxError, ValueError) as error:
            self._send(Failed(request.request, failure(error)))
        else:
            # Sent before anything else is awaited: what was taken is always known to the client.
            self._send(Delivered(request.request, deliveries))

    def _send(self, frame: Frame) -> None:
        self._writer.write(encode(frame))
