"""A proxy that can hold back the server's replies alone: what was asked for happens, and nobody hears."""

from __future__ import annotations

import asyncio
import socket

from tests.servers.proxy import Proxy


class DeafProxy(Proxy):
    """As `Proxy`, and its client can be made deaf."""

    def __init__(self, target_port: int) -> None:
        self._heard = asyncio.Event()
        self._heard.set()
        super().__init__(target_port)

    def go_deaf(self) -> None:
        """Deliver requests, hold back replies, until `cut` or `hear`."""
        self._do(self._hear(False))

    def hear(self) -> None:
        """Let replies through again, held-back ones first."""
        self._do(self._hear(True))

    def cut(self, *, refuse: bool = False) -> None:
        super().cut(refuse=refuse)
        self._do(self._hear(True))

    async def _hear(self, heard: bool) -> None:
        (self._heard.set if heard else self._heard.clear)()

    async def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        if source.getpeername() != self._target:
            await super()._pump(source, sink)
            return
        while True:
            chunk = await self._loop.sock_recv(source, 65_536)
            await self._flowing.wait()
            await self._heard.wait()
            if not chunk:
                sink.shutdown(socket.SHUT_WR)
                return
            await self._loop.sock_sendall(sink, chunk)
