"""A `Memory` that lives in another process: what children of a demo or a crash test consume from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType

from oncebox.brokers.contract import Delivery
from oncebox.brokers.destination import topic_of
from oncebox.brokers.frames import (
    BATCH_BYTES_MAX,
    Ask,
    Delivered,
    Done,
    Extend,
    Figures,
    Nack,
    Put,
    Receive,
    Release,
    Route,
    Sync,
    raised,
)
from oncebox.brokers.link import Address, Link
from oncebox.brokers.stored import QueueStats, Stored, carried_identity, to_store
from oncebox.errors import BrokerUnavailable, ConfigError, MessageError, OnceboxError
from oncebox.identity import Identity, Resolver
from oncebox.message import Message

__all__ = ["RemoteMemory", "RemoteSource", "RemoteTopic"]


class RemoteMemory:
    """The `Memory` served at `address` (`async with memory.serve() as address`), in another process.

    Opens nothing until it is used. Use it, and what it gives, from one event loop.
    `ConfigError` for something that is not such an address.
    """

    def __init__(self, address: str) -> None:
        self._address = Address(address)
        self._line = _Line(self._address)

    def queue(
        self,
        name: str,
        *,
        type: str | Resolver | None = None,  # noqa: A002 - the word that every source uses
        identity: Identity | None = None,
        prefetch: int | None = None,
    ) -> RemoteSource:
        """A new subscription to a queue that the serving process has declared; words as `Memory.queue`."""
        return RemoteSource(self._address, name, type=type, identity=identity, prefetch=prefetch)

    def topic(self, name: str) -> RemoteTopic:
        """A sink that publishes to the serving process's topic."""
        return RemoteTopic(self._address, name)

    exchange = topic

    async def publish(
        self, queue: str, *messages: Message | Delivery, duplicates: int = 0, delay_seconds: float = 0.0
    ) -> None:
        """As `Memory.publish`, and waits until the messages are in the queue."""
        stored = [to_store(message) for message in messages]
        await (await self._line.link()).call(
            lambda number: Put(number, queue, stored, duplicates, delay_seconds), Done
        )

    async def stats(self) -> dict[str, QueueStats]:
        """As `Memory.stats`."""
        return (await (await self._line.link()).call(Ask, Figures)).queues

    async def close(self) -> None:
        """Hang up the line for `publish` and `stats`; sources and topics have their own."""
        await self._line.close()

    async def __aenter__(self) -> RemoteMemory:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class RemoteSource:
    """One subscription to a served queue, on a connection of its own.

    When the connection is lost (either process died), what was not answered is delivered again, and
    counted. The next `receive` connects again; answers to deliveries from before are ignored.
    """

    in_process = False
    counts_deliveries = True

    def __init__(
        self,
        address: Address,
        name: str,
        *,
        type: str | Resolver | None = None,  # noqa: A002
        identity: Identity | None = None,
        prefetch: int | None = None,
    ) -> None:
        if prefetch is not None and prefetch < 1:
            raise ConfigError(
                f"queue {name!r}: prefetch={prefetch!r}; it is at least 1, or None for no bound"
            )
        self.name = name
        self.identity = carried_identity(identity, type)
        self.redelivery_horizon_seconds: float | None = None
        """As the queue was declared; known once open."""
        self.pins_keys = False
        """As the queue was declared; known once open."""
        self._line = _Line(address, name, prefetch)
        self._open = False

    async def open(self) -> None:
        """Connect; `BrokerUnavailable` when nobody serves, `ConfigError` when the queue is not declared."""
        link = await self._line.link()
        self.redelivery_horizon_seconds = link.welcome.retention_seconds
        self.pins_keys = link.welcome.pins_keys
        self._open = True

    async def close(self) -> None:
        """Send what was answered, give the rest back uncounted, and disconnect."""
        self._open = False
        await self._line.close()

    def drop(self) -> None:
        """Lose the connection, as a killed process would: what was not answered comes back, counted."""
        self._line.drop()

    async def receive(self, limit: int) -> list[Delivery]:
        """See `Source.receive`. Up to 32 MiB at once; connects again after a loss."""
        self._check_open()
        link = await self._line.link()
        reply = await link.call(lambda number: Receive(number, limit), Delivered)
        for delivery in reply.deliveries:
            delivery.tag = (link, delivery.tag)
        return reply.deliveries

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.ack`. Does not wait for the broker; `flush` does."""
        for link, tags in _by_link(deliveries):
            await link.ack(tags)

    async def nack(self, delivery: Delivery, delay_seconds: float) -> None:
        """See `Source.nack`."""
        for link, (tag,) in _by_link([delivery]):
            await link.tell(Nack(tag, delay_seconds))

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.release`."""
        for link, tags in _by_link(deliveries):
            await link.tell(Release(tags))

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """See `Source.extend`."""
        for link, tags in _by_link(deliveries):
            await link.tell(Extend(tags, seconds))

    async def flush(self) -> None:
        """Wait until the broker has heard every answer given so far; `BrokerUnavailable` if it can't."""
        self._check_open()
        await (await self._line.link()).call(Sync, Done)

    def _check_open(self) -> None:
        if not self._open:
            raise BrokerUnavailable(f"the source of queue {self.name!r} is not open")


class RemoteTopic:
    """A sink that publishes to a served `Memory`'s topic, and waits until its queues have the message."""

    def __init__(self, address: Address, name: str) -> None:
        self.name = name
        self._line = _Line(address)

    async def open(self) -> None:
        """Connect; `BrokerUnavailable` when nobody serves."""
        await self._line.link()

    async def close(self) -> None:
        """Disconnect."""
        await self._line.close()

    async def publish(self, messages: Sequence[Message]) -> list[BaseException | None]:
        """See `Sink.publish`; after a lost connection, connects again."""
        confirmations: list[BaseException | None] = []
        batch: list[Stored] = []
        size = 0
        topic = self.name
        for message in messages:
            wanted = topic_of(message) or self.name
            try:
                stored = to_store(message)
            except MessageError as error:
                confirmations += [*await self._route(topic, batch), error]
                batch, size = [], 0
                continue
            if batch and (size + stored.size > BATCH_BYTES_MAX or wanted != topic):
                confirmations += await self._route(topic, batch)
                batch, size = [], 0
            topic = wanted
            batch.append(stored)
            size += stored.size
        return confirmations + await self._route(topic, batch)

    async def _route(self, topic: str, batch: list[Stored]) -> list[BaseException | None]:
        if not batch:
            return []
        try:
            link = await self._line.link()
            done = await link.call(lambda number: Route(number, topic, batch), Done)
        except OnceboxError as error:
            return [error] * len(batch)
        return [None if failed is None else raised(failed) for failed in done.failures]


class _Line:
    """A connection that is made when it is first needed, and again after it was lost."""

    def __init__(self, address: Address, queue: str | None = None, prefetch: int | None = None) -> None:
        self._address = address
        self._queue = queue
        self._prefetch = prefetch
        self._link: Link | None = None
        self._connecting = asyncio.Lock()

    async def link(self) -> Link:
        """The live connection; connects if there is none."""
        async with self._connecting:
            if self._link is None or not self._link.alive:
                if self._link is not None:
                    await self._link.close()
                self._link = await self._address.connect(self._queue, self._prefetch)
            return self._link

    def drop(self) -> None:
        """Hang up without a goodbye; the next `link` connects again."""
        if self._link is not None:
            self._link.drop("dropped")

    async def close(self) -> None:
        """Say goodbye, if there is anyone to say it to."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()


def _by_link(deliveries: Sequence[Delivery]) -> list[tuple[Link, list[int]]]:
    """Tags by the connection that gave them: an answer on another one would name someone else's delivery."""
    links: dict[int, tuple[Link, list[int]]] = {}
    for delivery in deliveries:
        link, tag = delivery.tag
        links.setdefault(id(link), (link, []))[1].append(tag)
    return list(links.values())
