"""A subscription of a consumer group to topics, as the runtime wants it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException

from oncebox.brokers.contract import Delivery, SourceFacts
from oncebox.brokers.kafka.deadletter import DeadLetters
from oncebox.brokers.kafka.desk import Desk
from oncebox.brokers.kafka.logs import Log, translated
from oncebox.brokers.kafka.poller import Poller
from oncebox.brokers.kafka.records import ID_HEADERS
from oncebox.brokers.kafka.topology import reached
from oncebox.brokers.kafka.watermarks import Incarnations, Mark
from oncebox.errors import BrokerUnavailable, ConfigError
from oncebox.identity import Identity
from oncebox.message import Message

__all__ = ["KafkaSource"]

log = logging.getLogger("oncebox.kafka")

OPEN_SECONDS = 10.0
CLOSE_SECONDS = 30.0
FLUSH_SECONDS = 10.0


class KafkaSource:
    """One member of a consumer group. Made by `Kafka.topics`; use it from one event loop.

    Kafka keeps a position per partition, not an answer per message. So `ack` moves the position only
    when everything before is acked too; `nack` and `release` keep the message in this process and hand
    it out again, while the position waits. When the process ends or the partition moves, everything
    from the position on is delivered again.
    """

    in_process = False
    counts_deliveries = False
    delays = False
    """Kafka can't put a message off: what is put off waits in this process, and the position with it."""
    pins_keys = True

    def __init__(
        self, servers: str, topics: Sequence[str], words: dict[str, Any], *, identity: Identity,
        watermarked: bool, window: int, buffer: int, buffer_bytes: int, commit_every_seconds: float,
        drain_seconds: float, redelivery_horizon_seconds: float | None, dead_letter: str | None,
        producer: dict[str, Any],
    ) -> None:  # fmt: skip
        self.topics = tuple(topics)
        self.group = str(words["group.id"])
        self.name = f"{'+'.join(self.topics)}@{self.group}"
        self.identity = identity
        self.watermarked = watermarked
        """Duplicates are told by place: see `Watermarked`."""
        # A mark forgets nothing, however late a message comes again; only what failed is in the ledger.
        self.redelivery_horizon_seconds = 0.0 if watermarked else redelivery_horizon_seconds
        self._where = f"Kafka at {servers}, topics {', '.join(self.topics)}, group {self.group}"
        self._words = words
        self._new_desk = partial(
            Desk, window=window, buffer_max=buffer, buffer_bytes_max=buffer_bytes, serial=watermarked
        )
        self._desk = self._new_desk()
        self._dead_letters = (
            None
            if dead_letter is None
            else DeadLetters(dead_letter, producer, self._where, self._passed, self._put_off)
        )
        self._poller: Poller | None = None
        self._new_poller = partial(
            Poller, words, self.topics, where=self._where, incarnations=Incarnations(words) if watermarked else None,
            commit_every_seconds=commit_every_seconds, drain_seconds=drain_seconds, wake=self._wake,
        )  # fmt: skip
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bell = asyncio.Event()
        self._rung = False
        self._open = False

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """The (topic, partition) pairs that are assigned to this source now."""
        return sorted((lane.topic, lane.partition) for lane in self._desk.lanes())

    @property
    def joined(self) -> bool:
        """Whether the group has taken this source in, be it without a partition; with
        `group.protocol=consumer`, only once it has one."""
        return self._poller is not None and self._poller.joined

    async def open(self) -> None:
        """Check that the topics exist and join the group.

        `BrokerUnavailable` when no broker answers within 10 seconds, `ConfigError` for a topic that is
        not there or a setting that librdkafka does not take.
        """
        if self._open:
            return
        self._loop = asyncio.get_running_loop()
        await self._loop.run_in_executor(None, self._check)
        if self._dead_letters is not None:
            try:
                await self._dead_letters.open()
            except BaseException:
                await self._dead_letters.close()
                raise
        if self.identity.id is None and not self.watermarked:
            log.info(
                "%s: ids come from CloudEvents, or from a header: %s; name another place with identity=Identity(id=…)",
                self._where,
                ", ".join(ID_HEADERS[:-1]),
            )
        self._open = True
        self._start()

    async def look(self) -> SourceFacts:
        """See `SourceFacts`. Asks without joining the group, so that nothing is assigned anew."""
        await asyncio.get_running_loop().run_in_executor(None, self._check)
        return SourceFacts()

    async def strayed(self, marks: Sequence[Mark]) -> list[str]:
        """Of these watermarks, which were made for other logs than are there now, and why. Asks like `look`."""
        return await asyncio.get_running_loop().run_in_executor(None, self._strayed, marks)

    async def close(self) -> None:
        """Commit what is finished and leave the group; the rest is delivered to others at once."""
        self._open = False
        if self._dead_letters is not None:
            await self._dead_letters.close()
        await self._stop()
        self._wake()

    async def drop(self) -> None:
        """Do as a killed process would: nothing is committed, what was acked since the last commit and
        what was not answered comes again, to whoever has the partition then. `receive` joins again."""
        await self._stop(abandon=True)

    async def receive(self, limit: int) -> list[Delivery]:
        """See `Source.receive`; `BrokerUnavailable` while no broker can be reached."""
        while self._open:
            if self._poller is None or self._poller.ended:
                await self._restart()
            self._bell.clear()
            self._rung = False
            # Nothing is awaited between the take and the return: safe to cancel.
            if taken := self._desk.take(limit, time.monotonic()):
                return taken
            if (trouble := self._trouble()) is not None:
                raise trouble
            due = self._desk.next_due()
            try:
                async with asyncio.timeout(None if due is None else max(due - time.monotonic(), 0.001)):
                    await self._bell.wait()
            except TimeoutError:
                continue
        raise BrokerUnavailable(f"{self._where}: this source is not open")

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.ack`. The position is committed about twice a second; `flush` does it now."""
        self._desk.ack(deliveries)

    async def nack(self, delivery: Delivery, delay_seconds: float) -> None:
        """See `Source.nack`. It waits here, not at the broker, and holds back its key, not its partition."""
        self._put_off(delivery, delay_seconds)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.release`; they come back to this source while it has their partition."""
        self._desk.release(deliveries)

    async def bury(self, delivery: Delivery, reason: str) -> None:
        """Dead: as `ack`, once the dead-letter topic has a copy, where one is named. It is written in the
        background; what could not be written is delivered again."""
        if self._dead_letters is None:
            self._passed(delivery)
        else:
            self._dead_letters.bury(delivery, reason)

    async def copy_dead(self, message: Message, reason: str) -> None:
        """See `Copying`. Nothing to do where no dead-letter topic is named."""
        if self._dead_letters is not None:
            self._dead_letters.copy(message, reason)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """Nothing to do: Kafka asks for signs of life from a consumer, not for messages."""

    async def flush(self) -> None:
        """Wait until the broker knows the position of everything that was acked so far."""
        poller = self._poller
        if poller is not None and not poller.ended:
            done = await asyncio.get_running_loop().run_in_executor(None, poller.flush, FLUSH_SECONDS)
            if not done:
                raise BrokerUnavailable(f"{self._where}: offsets were not committed in {FLUSH_SECONDS:g} s")

    def _passed(self, delivery: Delivery) -> None:
        self._desk.ack([delivery])

    def _put_off(self, delivery: Delivery, seconds: float) -> None:
        self._desk.nack(delivery, time.monotonic() + seconds)

    def _start(self) -> None:
        # Each member has a desk of its own: one that is slow to leave must not clear another's.
        self._desk = self._new_desk()
        self._desk.wake = self._wake
        self._poller = self._new_poller(desk=self._desk)
        self._poller.start()

    async def _restart(self) -> None:
        """After librdkafka gave up: a new member takes its place, once what failed was said."""
        failed, self._poller = self._poller, None
        if failed is not None:
            await asyncio.get_running_loop().run_in_executor(None, failed.join, CLOSE_SECONDS)
            if failed.trouble is not None:
                raise failed.trouble
        if self._open and self._poller is None:
            self._start()

    async def _stop(self, *, abandon: bool = False) -> None:
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.stop(abandon=abandon)
            # A broker that is gone keeps librdkafka waiting; the thread is a daemon and ends by itself.
            await asyncio.get_running_loop().run_in_executor(None, poller.join, CLOSE_SECONDS)

    def _trouble(self) -> Exception | None:
        return self._poller.trouble if self._poller is not None else None

    def _wake(self) -> None:
        """From any thread: `receive` should look."""
        if not self._rung and self._loop is not None:
            self._rung = True
            try:
                self._loop.call_soon_threadsafe(self._bell.set)
            except RuntimeError:  # the loop is closed; nobody receives any more
                return

    def _strayed(self, marks: Sequence[Mark]) -> list[str]:
        consumer = Consumer(dict(self._words), logger=Log())
        try:
            return Incarnations(self._words).strayed(consumer, marks)
        finally:
            consumer.close()

    def _check(self) -> None:
        try:
            consumer = Consumer(dict(self._words), logger=Log())
        except (KafkaException, ValueError, TypeError) as error:
            raise ConfigError(str(translated(error, self._where))) from error
        try:
            reached(consumer, self.topics, self._where, OPEN_SECONDS)
        finally:
            consumer.close()
