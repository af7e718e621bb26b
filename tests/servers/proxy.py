"""A TCP proxy on loopback whose network can be broken on command."""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

_CHUNK_BYTES = 65_536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, zero seconds: close() sends RST, not FIN


class Proxy:
    """Forwards a random loopback port to `target_port`, in a thread of its own.

    A new proxy passes everything through. Its port stays the same for its whole life.
    """

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._links: set[asyncio.Task[None]] = set()
        self._refusing = False
        # A selector loop whatever policy a test has set: sockets are handled by hand here.
        self._loop = asyncio.SelectorEventLoop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._loop.add_reader(self._listener, self._accept)
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    def through(self, url: str) -> str:
        """The same URL, with this proxy's address in place of the server's."""
        parts = urlsplit(url)
        user = f"{parts.username}@" if parts.username else ""
        return urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self.port}"))

    def pass_through(self) -> None:
        """Forward everything, held-back bytes first, and accept new connections."""
        self._do(self._set_state(flowing=True, refusing=False))

    resume = pass_through

    def go_silent(self) -> None:
        """Keep every socket open and forward nothing, not even a close: a peer that vanished.

        New connections are accepted and equally silent. What is held back flows after `resume`.
        """
        self._do(self._set_state(flowing=False, refusing=False))

    def cut(self, *, refuse: bool = False) -> None:
        """Reset every open connection, on both sides.

        New connections work at once, or with `refuse` are reset too until `pass_through`.
        """
        self._do(self._reset_links())
        self._do(self._set_state(flowing=True, refusing=refuse))

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._links)

    def close(self) -> None:
        if self._thread.is_alive():
            self.cut(refuse=True)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, action: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(action, self._loop).result(timeout=10)

    # Everything below runs on the proxy's own loop.

    def _run(self) -> None:
        with self._listener:
            self._loop.run_forever()
            self._loop.remove_reader(self._listener)
            self._loop.run_until_complete(self._reset_links())
            self._loop.close()

    async def _set_state(self, *, flowing: bool, refusing: bool) -> None:
        self._refusing = refusing
        if flowing:
            self._flowing.set()
        else:
            self._flowing.clear()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # gone again before it was accepted
        if self._refusing:
            _close_with_reset(client)
            return
        client.setblocking(False)
        link = self._loop.create_task(self._link(client))
        self._links.add(link)
        link.add_done_callback(self._links.discard)
        # A link that is reset before its first step never comes to its own `finally`.
        link.add_done_callback(lambda _: _close_with_reset(client))

    async def _link(self, client: socket.socket) -> None:
        """Carry one connection, until both directions ended or one of them broke."""
        server = socket.socket()
        server.setblocking(False)
        orderly = False
        try:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(server, self._target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(client, server))
                both.create_task(self._pump(server, client))
            orderly = True
        except* OSError:
            pass  # one side broke; below, the other is made to see a break too
        finally:
            for end in (client, server):
                if orderly:
                    end.close()
                else:
                    _close_with_reset(end)

    async def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        while True:
            try:
                chunk = await self._loop.sock_recv(source, _CHUNK_BYTES)
            except OSError:
                await self._flowing.wait()  # in silence nothing crosses, a reset as little as data
                raise
            await self._flowing.wait()
            if not chunk:
                sink.shutdown(socket.SHUT_WR)
                return
            await self._loop.sock_sendall(sink, chunk)

    async def _reset_links(self) -> None:
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)


def _close_with_reset(end: socket.socket) -> None:
    if end.fileno() == -1:
        return
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    end.close()
