"""A topic to publish to: an idempotent producer, and one confirmation per message."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from oncebox.brokers.kafka.logs import Log, translated
from oncebox.brokers.kafka.records import destination, outgoing
from oncebox.brokers.kafka.topology import reached
from oncebox.errors import ConfigError
from oncebox.message import Message

__all__ = ["KafkaTopic"]

OPEN_SECONDS = 10.0
CLOSE_SECONDS = 5.0
FULL_PAUSE_SECONDS = 0.02


class KafkaTopic:
    """A sink. Messages of one key go to one partition, in order; resending keeps the id, as ever."""

    def __init__(self, servers: str, topic: str, words: Mapping[str, Any]) -> None:
        self.name = topic
        self._where = f"Kafka at {servers}, topic {topic}"
        self._words = dict(words)
        self._line: _Line | None = None

    async def open(self) -> None:
        """Connect; `BrokerUnavailable` when no broker answers, `ConfigError` when the topic is missing."""
        loop = asyncio.get_running_loop()
        line = self._ready()
        await loop.run_in_executor(None, reached, line.producer, [self.name], self._where, OPEN_SECONDS)

    async def close(self) -> None:
        """Wait a little for what is under way, then disconnect."""
        line, self._line = self._line, None
        if line is not None:
            await asyncio.get_running_loop().run_in_executor(None, line.close)

    async def publish(self, messages: Sequence[Message]) -> list[BaseException | None]:
        """See `Sink.publish`; a confirmation is the acknowledgement of all in-sync replicas."""
        line = self._ready()
        batch = _Batch(len(messages))
        for number, message in enumerate(messages):
            await self._send(line, batch, number, message)
        return [
            None
            if error is None
            else error
            if isinstance(error, Exception)
            else translated(error, self._where)
            for error in await batch.answered
        ]

    async def _send(self, line: _Line, batch: _Batch, number: int, message: Message) -> None:
        while True:
            try:
                line.producer.produce(
                    destination(message, self.name),
                    value=None if message.provenance.get("tombstone") else message.payload,
                    key=None if message.key is None else message.key.encode(),
                    headers=outgoing(message),
                    on_delivery=lambda error, _: batch.answer(number, error),
                )
            except BufferError:
                # librdkafka's own queue is full: it empties as confirmations come.
                await asyncio.sleep(FULL_PAUSE_SECONDS)
                continue
            except KafkaException as error:
                batch.answer(number, translated(error, self._where))
            except Exception as error:
                batch.answer(number, error)
            return

    def _ready(self) -> _Line:
        """The producer, made when first needed, and again after one that can't go on."""
        if self._line is not None and self._line.failed is not None:
            self._line.stop()
            self._line = None
        if self._line is None:
            try:
                self._line = _Line(self._words)
            except (KafkaException, ValueError, TypeError) as error:
                raise ConfigError(str(translated(error, self._where))) from error
        return self._line


class _Batch:
    """What is published together, and the answers that have come so far."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._answers: list[Any] = [None] * count
        self._missing = count
        self._lock = threading.Lock()
        self.answered: asyncio.Future[list[Any]] = self._loop.create_future()
        if not count:
            self.answered.set_result([])

    def answer(self, number: int, error: object) -> None:
        """From any thread: what became of one message."""
        with self._lock:
            self._answers[number] = error
            self._missing -= 1
            done = not self._missing
        if done:
            try:
                self._loop.call_soon_threadsafe(self._finish)
            except RuntimeError:  # the loop is closed; nobody waits any more
                return

    def _finish(self) -> None:
        if not self.answered.done():  # a caller that was cancelled has stopped waiting
            self.answered.set_result(self._answers)


class _Line:
    """A producer, and the thread in which its confirmations arrive."""

    def __init__(self, words: dict[str, Any]) -> None:
        self.failed: KafkaError | None = None
        """The error after which an idempotent producer sends nothing more."""
        self.producer = Producer({**words, "error_cb": self._on_error}, logger=Log())
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="kafka-producer", daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self.producer.poll(0.1)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.failed = error

    def stop(self) -> None:
        """End the thread; what was not confirmed never will be."""
        self._stopping.set()
        self.producer.purge()
        self.producer.poll(0)

    def close(self) -> None:
        """Wait for what is under way, `CLOSE_SECONDS` at most."""
        self.producer.flush(CLOSE_SECONDS)
        self.stop()
        self._thread.join(CLOSE_SECONDS)
        self.producer.flush(CLOSE_SECONDS)
