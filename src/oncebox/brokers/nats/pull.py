"""An inbox for pulled messages, with one request at a time and a way to take it back.

A request either takes what is there (`no_wait`) or waits for a single message: between two calls of
`receive` nothing is under way, so no message waits in this process while another could handle it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from oncebox.brokers.nats.connection import REPLY_SECONDS, Connection, Link
from oncebox.brokers.nats.headers import Raw
from oncebox.errors import BrokerUnavailable

LINGER_SECONDS = 10.0
"""How long a request waits for a message before it is made anew; what no longer answers shows by then."""
QUIET_SECONDS = 0.05
"""A request that brings nothing more for so long has brought what there is."""
BATCH_BYTES_MAX = 32 * 1024 * 1024
"""Taken at once; a message that is larger comes alone."""


class Pull:
    """One inbox on one connection."""

    def __init__(self, connection: Connection, link: Link, stream: str, consumer: str) -> None:
        self.link = link
        self._connection = connection
        self.arrived: deque[Msg] = deque()
        self._subject = f"{connection.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = link.new_inbox()
        self._subscription: Subscription | None = None
        self._number = 0
        self._missing = 0
        self._status = ""
        self._begun = asyncio.Event()
        self._over = asyncio.Event()
        self._retiring: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Subscribe to the inbox."""
        self._subscription = await self.link.subscribe(
            f"{self._inbox}.*", cb=self._take, pending_bytes_limit=0
        )
        self.link.when_closed.add(self.wake)

    async def fetch(self, batch: int) -> str:
        """Take what is there, `batch` at most. How the server ended the request; "" when it was full.

        A consumer that has `max_ack_pending` in hand gets no more, and no end of its request either: then
        the inbox is retired, with what has arrived.
        """
        await self._request(batch, {"batch": batch, "no_wait": True, "max_bytes": BATCH_BYTES_MAX})
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                await self._begun.wait()
            while not self._over.is_set():
                await self._settled(len(self.arrived))
        except TimeoutError:
            await self.retire()
        return self._status

    async def _settled(self, count: int) -> None:
        """Raises `TimeoutError` when nothing more comes, although more was asked for."""
        try:
            async with asyncio.timeout(QUIET_SECONDS):
                await self._over.wait()
        except TimeoutError:
            if len(self.arrived) == count:
                raise

    async def linger(self) -> str:
        """Wait for one message, up to `LINGER_SECONDS`. `TimeoutError` when the server does not end it then."""
        await self._request(1, {"batch": 1, "expires": int(LINGER_SECONDS * 1e9)})
        async with asyncio.timeout(LINGER_SECONDS + REPLY_SECONDS):
            await self._over.wait()
        return self._status

    async def _request(self, batch: int, request: Mapping[str, object]) -> None:
        self._number += 1
        self._missing, self._status = batch, ""
        self._begun.clear()
        self._over.clear()
        try:
            await self.link.publish(self._subject, json.dumps(request).encode(), self._reply)
        except nats.errors.Error as error:
            raise BrokerUnavailable(f"the connection was lost: {error}") from error

    @property
    def _reply(self) -> str:
        return f"{self._inbox}.{self._number}"

    async def _take(self, message: Msg) -> None:
        if message.reply.startswith("$JS.ACK."):
            self.arrived.append(message)
            self._missing -= 1
            self._begun.set()
            if self._missing <= 0:
                self._over.set()
        elif message.subject == self._reply:
            # The end of an earlier request, which was given up, says nothing about this one.
            status = _status(message)
            if not status.startswith("100"):
                self._status = status
                self.wake()

    def wake(self) -> None:
        """End the wait: the request is over, or the connection or the source is closed."""
        self._begun.set()
        self._over.set()

    @property
    def retired(self) -> bool:
        """Whether nothing more can arrive."""
        return self._retiring is not None or not self.link.is_connected

    async def retire(self) -> None:
        """Take the request back; what the server had sent by then has arrived."""
        if self._retiring is None:
            self._retiring = asyncio.ensure_future(self._drain())
        await asyncio.shield(self._retiring)

    async def _drain(self) -> None:
        self.link.when_closed.discard(self.wake)
        if self._subscription is not None and self.link.is_connected:
            # Unsubscribes, and waits for what was on its way: the server drops requests nobody listens to.
            try:
                async with asyncio.timeout(REPLY_SECONDS):
                    await self._subscription.drain()  # type: ignore[no-untyped-call]
            except (nats.errors.Error, TimeoutError):
                await self._connection.drop(self.link)

    async def withdraw(self) -> list[Msg]:
        """Retire it; what nobody took of what arrived."""
        await self.retire()
        messages = list(self.arrived)
        self.arrived.clear()
        return messages


def _status(message: Msg) -> str:
    """Such as "404 No Messages"."""
    block: bytes = message.headers.block if isinstance(message.headers, Raw) else b""
    if block:
        return block.partition(b"\r\n")[0].removeprefix(b"NATS/1.0").strip().decode("utf-8", "replace")
    headers = message.headers or {}
    return f"{headers.get('Status', '')} {headers.get('Description', '')}".strip()
