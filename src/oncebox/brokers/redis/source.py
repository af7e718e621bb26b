"""A consumer group as a source.

Redis keeps what a consumer has in hand, with an idle time and a count. Visibility and delays are made of
the idle time: an entry is claimed by whoever looks once it has been idle for the visibility.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Sequence

from oncebox.brokers.contract import Delivery, SourceFacts
from oncebox.brokers.redis.connection import Server
from oncebox.brokers.redis.entries import PAYLOAD, Fields, delivery_of
from oncebox.brokers.redis.reader import Reader
from oncebox.brokers.redis.scripts import NAMES, Scripts
from oncebox.brokers.redis.topology import check_server, find_group, groups_of, losses
from oncebox.brokers.stored import carried_identity
from oncebox.errors import BrokerUnavailable, ConfigError
from oncebox.identity import Identity, Resolver

log = logging.getLogger("oncebox")

CLOSE_SECONDS = 5.0
"""How long giving back may take at the end."""
SHORT_VISIBILITY_SECONDS = 10.0
"""Working on a message is reported every 5 s: with less than this, others claim it meanwhile."""


class RedisSource:
    """One consumer of a group; any number of processes share the group.

    What is not answered is claimed by another consumer after `visibility_seconds`, also after a lost
    connection: the server does not notice that one.
    """

    in_process = False
    counts_deliveries = True
    pins_keys = False
    redelivery_horizon_seconds: float | None = None

    def __init__(
        self,
        server: Server,
        stream: str,
        group: str,
        *,
        type: str | Resolver | None = None,  # noqa: A002
        identity: Identity | None = None,
        payload: str = PAYLOAD,
        create: bool = False,
        delete: bool = False,
        visibility_seconds: float = 30.0,
        dead_letter: str | None = None,
    ) -> None:
        if not stream or not group or not payload:
            raise ConfigError("a Redis stream, its group and its payload field have names, not ''")
        if visibility_seconds <= 0:
            raise ConfigError(f"visibility_seconds={visibility_seconds!r}: it is more than 0")
        if dead_letter in ("", stream):
            raise ConfigError(f"dead_letter={dead_letter!r}: it is another stream's name, or None")
        self.name = f"{stream}/{group}"
        self.identity = carried_identity(identity, type)
        self._server = server
        self._stream = stream
        self._group = group
        self._consumer = f"{NAMES}{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._payload = payload
        self._create = create
        self._delete = delete
        self._visibility_seconds = visibility_seconds
        self._dead_letter = dead_letter
        self._scripts: Scripts | None = None
        self._reader: Reader | None = None
        self._held: set[tuple[bytes, int]] = set()
        self._delayed: dict[tuple[bytes, int], float] = {}
        """Nacked for longer than the visibility, with when they are due."""
        self._keeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect; make the group if asked to, and check it."""
        if self._reader is not None:
            return
        client = self._server.client(again=True)
        scripts = Scripts(
            client,
            self._stream,
            self._group,
            self._consumer,
            delete=self._delete,
            dead_letter=self._dead_letter,
        )
        try:
            async with self._server.asking():
                await check_server(client, self._server)
                await find_group(
                    client, self._server, self._stream, self._group, create=self._create, alone=self._delete
                )
                if self._dead_letter is not None:
                    await groups_of(client, self._server, self._dead_letter)  # it is a stream, or nothing yet
                await scripts.leave()
        except BaseException:
            await client.aclose()
            raise
        if self._visibility_seconds < SHORT_VISIBILITY_SECONDS:
            log.warning(
                "source %s: visibility_seconds=%g; what takes longer is delivered again meanwhile: set %g or more",
                self.name,
                self._visibility_seconds,
                SHORT_VISIBILITY_SECONDS,
            )
        self._scripts = scripts
        self._reader = Reader(self._server, scripts, self._visibility_seconds)

    async def look(self) -> SourceFacts:
        """See `SourceFacts`."""
        client = self._server.client(again=True)
        try:
            async with self._server.asking():
                volatile = await losses(client, self._server)
                await find_group(
                    client, self._server, self._stream, self._group, create=False, alone=self._delete
                )
        finally:
            await client.aclose()
        return SourceFacts(visibility_seconds=self._visibility_seconds, volatile=volatile)

    async def close(self) -> None:
        """Give back what was not answered, at once and uncounted, and disconnect."""
        reader, self._reader = self._reader, None
        scripts, self._scripts = self._scripts, None
        if reader is None or scripts is None:
            return
        if self._keeping is not None:
            self._keeping.cancel()
        await reader.close()
        try:
            async with self._server.asking(CLOSE_SECONDS):
                await scripts.answer("release", "", self._held)
                await scripts.leave(self._consumer)
        except (BrokerUnavailable, ConfigError) as error:
            log.debug("source %s: %s", self.name, error)
        self._held.clear()
        self._delayed.clear()
        await scripts.client.aclose()

    async def receive(self, limit: int) -> list[Delivery]:
        """See `Source.receive`. What others gave back or left behind is found within a quarter of a second."""
        while (reader := self._reader) is not None:
            if taken := await reader.take(limit):
                return [self._delivery(*each) for each in taken]
        raise BrokerUnavailable(f"source {self.name} is not open")

    def _delivery(self, entry: bytes, fields: Fields, count: int) -> Delivery:
        where: dict[str, object] = {"stream": self._stream, "id": entry.decode(), "group": self._group}
        delivery = delivery_of(fields, self._payload, where, count)
        delivery.tag = (entry, count)
        self._held.add(delivery.tag)
        return delivery

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.ack`; the server has heard when this returns."""
        await self._answer("ack", "", deliveries)

    async def nack(self, delivery: Delivery, delay_seconds: float) -> None:
        """See `Source.nack`. A delay up to the visibility is the server's; a longer one is kept by this
        process, and cut short to the visibility when it ends."""
        if delay_seconds > self._visibility_seconds and delivery.tag in self._held:
            self._delayed[delivery.tag] = time.monotonic() + delay_seconds
            if self._keeping is None or self._keeping.done():
                self._keeping = asyncio.ensure_future(self._keep_delayed())
        await self._answer("later", self._idle_ms(delay_seconds), [delivery])
        if self._reader is not None:
            self._reader.look(delay_seconds)

    async def bury(self, delivery: Delivery, reason: str) -> None:
        """Dead: as `ack`, with a copy in the dead-letter stream, where one is named, in the same step."""
        await self._answer("ack" if self._dead_letter is None else "bury", reason, [delivery])

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.release`; the delivery is not counted."""
        await self._answer("release", "", deliveries)
        if deliveries and self._reader is not None:
            self._reader.look(0)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """See `Source.extend`; for the visibility at most, and never shortens the time that is left."""
        await self._answer("extend", self._idle_ms(seconds), deliveries, done=False)

    async def flush(self) -> None:
        """Wait until nothing of this source is under way; `BrokerUnavailable` if the server can't be reached."""
        if self._reader is not None and self._scripts is not None:
            await self._reader.settle()
            async with self._server.asking():
                await self._scripts.client.ping()

    def _idle_ms(self, seconds: float) -> str:
        """The idle time from which on it takes `seconds` to reach the visibility."""
        return str(max(0, int((self._visibility_seconds - seconds) * 1000)))

    async def _answer(
        self, what: str, argument: str, deliveries: Sequence[Delivery], *, done: bool = True
    ) -> None:
        """An answer that comes too late or twice is for nobody: the tag is not held, or the server knows."""
        tags = [delivery.tag for delivery in deliveries if delivery.tag in self._held]
        if done:
            self._held.difference_update(tags)
        if self._scripts is not None:
            try:
                async with self._server.asking():
                    await self._scripts.answer(what, argument, tags)
            except ConfigError as error:
                raise BrokerUnavailable(str(error)) from error

    async def _keep_delayed(self) -> None:
        """While something is delayed beyond the visibility, set its idle time back before others claim it."""
        while self._delayed and self._scripts is not None:
            await asyncio.sleep(self._visibility_seconds / 3)
            for tag, due in list(self._delayed.items()):
                left = due - time.monotonic()
                if left <= self._visibility_seconds:
                    del self._delayed[tag]
                try:
                    async with self._server.asking():
                        await self._scripts.answer("later", self._idle_ms(left), [tag])
                except (BrokerUnavailable, ConfigError) as error:
                    log.debug("source %s: %s", self.name, error)
