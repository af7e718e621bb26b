"""Writing records and waiting for the broker's word on each: what sinks and dead letters share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from oncebox.brokers.kafka.logs import Log, translated
from oncebox.brokers.kafka.topology import reached
from oncebox.errors import ConfigError

OPEN_SECONDS = 10.0
CLOSE_SECONDS = 5.0
FULL_PAUSE_SECONDS = 0.02

WrittenHeaders = list[tuple[str, str | bytes | None]]


class Written(NamedTuple):
    """One record to write."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: WrittenHeaders


class Writer:
    """An idempotent producer, made when first needed, and again after one that can't go on."""

    def __init__(self, words: Mapping[str, Any], where: str) -> None:
        self._words = dict(words)
        self._where = where
        self._line: _Line | None = None

    async def open(self, topics: Iterable[str]) -> None:
        """Connect; `BrokerUnavailable` when no broker answers, `ConfigError` when a topic is missing."""
        producer = self._ready().producer
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, reached, producer, list(topics), self._where, OPEN_SECONDS)

    async def close(self) -> None:
        """Wait a little for what is under way, then disconnect."""
        line, self._line = self._line, None
        if line is not None:
            await asyncio.get_running_loop().run_in_executor(None, line.close)

    async def write(self, records: Sequence[Written]) -> list[BaseException | None]:
        """One answer per record: None when all in-sync replicas have it, else why that is not known."""
        line = self._ready()
        batch = _Batch(len(records))
        for number, record in enumerate(records):
            await self._send(line, batch, number, record)
        return [
            translated(answer, self._where) if isinstance(answer, KafkaError) else answer
            for answer in await batch.answered
        ]

    async def _send(self, line: _Line, batch: _Batch, number: int, record: Written) -> None:
        while True:
            try:
                line.producer.produce(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    headers=record.headers,
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
    """What is written together, and the answers that have come so far."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._answers: list[Any] = [None] * count
        self._missing = count
        self._lock = threading.Lock()
        self.answered: asyncio.Future[list[Any]] = self._loop.create_future()
        if not count:
            self.answered.set_result([])

    def answer(self, number: int, answer: object) -> None:
        """From any thread: what became of one record."""
        with self._lock:
            self._answers[number] = answer
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
        """End the thread; what was not confirmed is answered so."""
        self._stopping.set()
        self.producer.purge()
        self.producer.poll(0)

    def close(self) -> None:
        """Wait for what is under way, `CLOSE_SECONDS` at most."""
        self.producer.flush(CLOSE_SECONDS)
        self.stop()
        self._thread.join(CLOSE_SECONDS)
        self.producer.flush(CLOSE_SECONDS)
