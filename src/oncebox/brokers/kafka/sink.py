"""A topic to publish to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oncebox.brokers.kafka.producing import Writer
from oncebox.brokers.kafka.records import to_write
from oncebox.message import Message

__all__ = ["KafkaTopic"]


class KafkaTopic:
    """A sink. Messages of one key go to one partition, in order; resending keeps the id, as ever."""

    def __init__(self, servers: str, topic: str, words: Mapping[str, Any]) -> None:
        self.name = topic
        self._writer = Writer(words, f"Kafka at {servers}, topic {topic}")

    async def open(self) -> None:
        """Connect; `BrokerUnavailable` when no broker answers, `ConfigError` when the topic is missing."""
        await self._writer.open([self.name])

    async def close(self) -> None:
        """Wait a little for what is under way, then disconnect."""
        await self._writer.close()

    async def publish(self, messages: Sequence[Message]) -> list[BaseException | None]:
        """See `Sink.publish`; a confirmation is the word of all in-sync replicas."""
        return await self._writer.write([to_write(message, self.name) for message in messages])
