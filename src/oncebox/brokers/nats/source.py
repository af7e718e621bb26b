"""A durable pull consumer as a source."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence

import nats.errors
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, StorageType, StreamConfig

from oncebox.brokers.contract import Delivery, SourceFacts, bound_identity
from oncebox.brokers.nats.connection import REPLY_SECONDS, Connection, Link, reason
from oncebox.brokers.nats.deadletter import DeadLetters
from oncebox.brokers.nats.headers import ID, first, incoming, key_of
from oncebox.brokers.nats.pull import Pull
from oncebox.brokers.nats.topology import find_consumer, find_stream, visibility_of
from oncebox.errors import BrokerUnavailable, ConfigError
from oncebox.identity import Identity, Resolver
from oncebox.identity.cloudevents import text_of

log = logging.getLogger("oncebox")

_ACK, _NAK, _PROGRESS, _TERM = b"+ACK", b"-NAK", b"+WPI", b"+TERM"
AGAIN_SECONDS = 5
"""When to try again what could not be buried."""
_NOTHING = ("404", "408", "409 Message Size Exceeds MaxBytes")
"""A request ended because nothing was there, or something that is too large for a batch."""


class NatsSource:
    """One subscription to a durable pull consumer; any number of processes share the consumer.

    What is not answered comes back when the consumer's `ack_wait` is over, also after a lost connection:
    the server does not notice that one. A delivery that was released is counted all the same.
    """

    in_process = False
    counts_deliveries = True
    pins_keys = False

    def __init__(
        self,
        connection: Connection,
        stream: str,
        consumer: str,
        *,
        subject: str | None = None,
        type: str | Resolver | None = None,  # noqa: A002
        identity: Identity | None = None,
        create: bool = False,
        visibility_seconds: float | None = None,
        double_ack: bool = False,
        dead_letter: str | None = None,
    ) -> None:
        for word, value in (("stream", stream), ("consumer", consumer)):
            if not value or any(char in value for char in ">*. /\\\t\r\n"):
                raise ConfigError(f"{word} {value!r}: a NATS {word} has a name without dots, spaces, * and >")
        if visibility_seconds is not None and visibility_seconds <= 0:
            raise ConfigError(f"visibility_seconds={visibility_seconds!r}: it is more than 0")
        self.name = f"{stream}/{consumer}"
        self.identity = bound_identity(identity, type)
        self.redelivery_horizon_seconds: float | None = None
        """The stream's `max_age`; known once open."""
        self._connection = connection
        self._stream = stream
        self._consumer = consumer
        self._subject = subject
        self._create = create
        self._declared_seconds = visibility_seconds
        self._visibility_seconds = 0.0
        self._double_ack = double_ack
        self._dead_letters = None if dead_letter is None else DeadLetters(connection, dead_letter)
        self._open = False
        self._pull: Pull | None = None
        self._held: dict[str, float] = {}
        """Reply subjects of what is unanswered, with the time until which it is ours."""
        self._errands: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect; make stream and consumer if asked to, and check them."""
        if self._open:
            return
        stream, consumer = await self._found(self, create=self._create)
        self.redelivery_horizon_seconds = stream.max_age or None
        self._visibility_seconds = visibility_of(consumer)
        self._open = True

    async def look(self) -> SourceFacts:
        """See `SourceFacts`."""
        asking = object()
        stream, consumer = await self._found(asking, create=False)
        await self._connection.leave(asking)
        self.redelivery_horizon_seconds = stream.max_age or None
        limit = consumer.max_deliver
        return SourceFacts(
            deliveries_max=limit if limit is not None and limit > 0 else None,
            visibility_seconds=visibility_of(consumer),
            volatile=("keeps the stream in memory",) if stream.storage == StorageType.MEMORY else (),
        )

    async def _found(self, user: object, *, create: bool) -> tuple[StreamConfig, ConsumerConfig]:
        """Stream and consumer, checked; this user has joined the connection then."""
        link = await self._connection.join(user)
        try:
            js, where = self._connection.jetstream(link), self._connection.where
            stream = await find_stream(js, where, self._stream, self._subject, create)
            consumer = await find_consumer(
                js,
                where,
                self._stream,
                self._consumer,
                subject=self._subject,
                visibility_seconds=self._declared_seconds,
                create=create,
            )
            if self._dead_letters is not None:
                await self._dead_letters.check(js, self._stream)
        except BaseException:
            await self._connection.leave(user)
            raise
        return stream, consumer

    async def close(self) -> None:
        """Give back what was not answered, at once though counted, and leave the connection."""
        was_open, self._open = self._open, False
        pull, self._pull = self._pull, None
        if pull is not None:
            pull.wake()
            self._run(self._give_back(pull))
        while self._errands:
            await asyncio.gather(*self._errands, return_exceptions=True)
        await self._say(list(self._held), _NAK)
        self._held.clear()
        if was_open:
            try:
                await self.flush()
            except BrokerUnavailable as error:
                log.debug("source %s: %s", self.name, error)
            await self._connection.leave(self)

    async def receive(self, limit: int) -> list[Delivery]:
        """See `Source.receive`. Up to 32 MiB at once, and a larger message alone."""
        while True:
            pull = await self._pulling()
            try:
                status = await pull.fetch(limit)
                if not pull.arrived and self._goes_on(pull, status):
                    if pull.retired:
                        await self._check_alive(pull.link)
                        continue
                    status = await pull.linger()
                    self._goes_on(pull, status)
            except TimeoutError:
                self._withdraw(pull)
                await self._check_alive(pull.link)
                continue
            except BaseException:
                # Cancelled, lost, or the consumer is gone: what is on its way belongs to others.
                self._withdraw(pull)
                raise
            if deliveries := self._taken(pull):
                return deliveries

    async def _pulling(self) -> Pull:
        if not self._open:
            raise BrokerUnavailable(f"source {self.name} is not open")
        if self._pull is None or self._pull.retired:
            try:
                link = await self._connection.link()
            except ConfigError as error:
                # At start a reason to stop; later on the server may let us in again.
                raise BrokerUnavailable(str(error)) from error
            pull = Pull(self._connection, link, self._stream, self._consumer)
            await pull.open()
            self._pull = pull
        return self._pull

    async def _check_alive(self, link: Link) -> None:
        """A request was not answered: by a server that is busy with others, or by one that is gone."""
        try:
            await link.flush(int(REPLY_SECONDS))
        except (nats.errors.Error, OSError) as error:
            await self._connection.drop(link)
            raise BrokerUnavailable(f"{self._connection.where} does not answer") from error

    def _goes_on(self, pull: Pull, status: str) -> bool:
        """True when a request that brought nothing is a reason to wait for more."""
        if not self._open:
            raise BrokerUnavailable(f"source {self.name} is closed")
        if not pull.link.is_connected:
            raise BrokerUnavailable(f"the connection to {self._connection.where} was lost")
        if not status or status.startswith(_NOTHING):
            return True
        if status.startswith("503") or "Deleted" in status:
            status = "the consumer is gone, or JetStream is not ready"
        elif "MaxRequest" in status:
            status += "; take that limit off the consumer (nats consumer edit)"
        raise BrokerUnavailable(f"source {self.name}: {status}")

    def _taken(self, pull: Pull) -> list[Delivery]:
        """Nothing is awaited from here to the caller: what was taken is always known to it."""
        now = time.monotonic()
        self._held = {reply: until for reply, until in self._held.items() if until > now}
        deliveries = []
        while pull.arrived:
            message = pull.arrived.popleft()
            self._held[message.reply] = now + self._visibility_seconds
            deliveries.append(self._delivery(message))
        return deliveries

    def _delivery(self, message: Msg) -> Delivery:
        headers = incoming(message.headers)
        identity = text_of((first(headers, ID) or b"").strip())
        where = message.metadata
        return Delivery(
            body=message.data,
            headers=headers,
            properties={"message_id": identity} if identity else {},
            provenance={
                "stream": where.stream,
                "id": str(where.sequence.stream),
                "subject": message.subject,
                "consumer": where.consumer,
                "timestamp": where.timestamp.isoformat(),
            },
            key=key_of(headers),
            deliveries=where.num_delivered,
            redelivered=where.num_delivered > 1,
            tag=message.reply,
        )

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.ack`. With `double_ack`, returns when the server has heard."""
        await self._say(self._ours(deliveries), _ACK, confirm=self._double_ack)

    async def nack(self, delivery: Delivery, delay_seconds: float) -> None:
        """See `Source.nack`; the server keeps the delay."""
        delay = b' {"delay": %d}' % int(delay_seconds * 1e9) if delay_seconds > 0 else b""
        await self._say(self._ours([delivery]), _NAK + delay)

    async def bury(self, delivery: Delivery, reason: str) -> None:
        """Dead: once the dead letters have a copy, where they are named, the server is told to deliver it no
        more, which it makes known as an advisory. What could not be copied is delivered again."""
        replies = self._ours([delivery])
        if replies and self._dead_letters is not None:
            try:
                await self._dead_letters.send(delivery, reason)
            except (BrokerUnavailable, ConfigError) as error:
                await self._say(replies, b'%s {"delay": %d}' % (_NAK, AGAIN_SECONDS * 10**9))
                raise BrokerUnavailable(str(error)) from error
        await self._say(replies, _TERM)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.release`; JetStream counts the delivery all the same."""
        await self._say(self._ours(deliveries), _NAK)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """See `Source.extend`; by the consumer's own `ack_wait` each time, whatever `seconds` says."""
        now = time.monotonic()
        replies = [each.tag for each in deliveries if self._held.get(each.tag, 0.0) > now]
        # Before it is said: an ack that overtakes this must find its delivery as it left it.
        self._held.update(dict.fromkeys(replies, now + self._visibility_seconds))
        await self._say(replies, _PROGRESS)

    async def flush(self) -> None:
        """Wait until the server has heard every answer given so far; `BrokerUnavailable` if it can't."""
        link = self._connection.live
        try:
            if link is None:
                raise nats.errors.ConnectionClosedError
            await asyncio.gather(*self._errands, return_exceptions=True)
            await link.flush(int(REPLY_SECONDS))
        except (nats.errors.Error, OSError) as error:
            raise BrokerUnavailable(f"{self._connection.where} did not answer: {error}") from error

    def _ours(self, deliveries: Sequence[Delivery]) -> list[str]:
        """What is still ours to answer, no longer held. JetStream would take an answer that comes too late
        as one for the delivery that somebody else has in hand."""
        now = time.monotonic()
        return [each.tag for each in deliveries if self._held.pop(each.tag, 0.0) > now]

    async def _say(self, replies: Sequence[str], what: bytes, *, confirm: bool = False) -> None:
        """An answer on a lost connection does nothing: the message comes back in its time."""
        link = self._connection.live
        if link is None:
            return
        try:
            if confirm:
                asked = (link.request(reply, what, timeout=REPLY_SECONDS) for reply in replies)
                await asyncio.gather(*asked)
            else:
                for reply in replies:
                    await link.publish(reply, what)
        except (nats.errors.Error, OSError) as error:
            raise BrokerUnavailable(f"an answer was lost: {reason(error)}") from error

    def _withdraw(self, pull: Pull) -> None:
        if self._pull is pull:
            self._pull = None
            self._run(self._give_back(pull))

    async def _give_back(self, pull: Pull) -> None:
        messages = await pull.withdraw()
        try:
            await self._say([message.reply for message in messages], _NAK)
        except BrokerUnavailable as error:
            log.debug("source %s: %s", self.name, error)

    def _run(self, errand: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
