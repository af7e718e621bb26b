"""A topic of the mock cluster, as the suites see it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from oncebox.brokers.contract import Delivery, Source
from oncebox.brokers.kafka import Kafka, KafkaSource
from oncebox.brokers.kafka.records import outgoing
from oncebox.message import Message
from tests.brokers.suite import Bench, Features, received
from tests.servers.kafka import Kafka as Cluster
from tests.waiting import eventually_async

# The mock answers a fetch of nothing only after its full wait, tells by heartbeat that others join, and
# rebalances for as long as a session may be silent, less a second. A machine that is busy may be silent for long.
QUICK: dict[str, Any] = {
    "fetch.wait.max.ms": 10,
    "heartbeat.interval.ms": 100,
    "session.timeout.ms": 6_000,
    "message.max.bytes": 20_000_000,
    "log_level": 0,
}
MORTAL: dict[str, Any] = {**QUICK, "session.timeout.ms": 2_000}
"""For those that are killed and must be missed soon, where it does no harm to be taken for dead."""


@pytest.fixture(scope="module")
def kafka_cluster() -> Iterator[Cluster]:
    """One for a module's tests: each has a topic and a group of its own."""
    with Cluster() as cluster:
        yield cluster


def kafka(cluster: Cluster) -> Kafka:
    return Kafka(cluster.servers, **QUICK)


def send(producer: Producer, topic: str, *messages: Message | Delivery, times: int = 1) -> None:
    """Return when the broker has them all."""
    failed: list[object] = []
    for message in messages:
        if isinstance(message, Message):
            body, headers = message.payload, outgoing(message)
        else:
            body, headers = message.body, list(message.headers)
        for _ in range(times):
            producer.produce(
                topic,
                value=body,
                key=message.key,
                headers=headers,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            producer.poll(0)
    assert producer.flush(30) == 0
    assert not failed


def positions(cluster: Cluster, topic: str, partitions: int = 1) -> list[int]:
    """What the topic's group has committed, by partition; 0 where it has nothing yet."""
    asker = Consumer({"bootstrap.servers": cluster.servers, "group.id": f"group-of-{topic}", "log_level": 0})
    try:
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        found = asker.committed(asked, timeout=10)
    finally:
        asker.close()
    return [max(each.offset, 0) for each in found]


class KafkaBench(Bench):
    """One partition, so that there is one order, and one consumer of the group that has it."""

    features = Features(visibility=False, counts=False, releases_uncounted=False, shares=False)
    visibility_seconds = hasty_seconds = 0.0
    delay_seconds = 1.0
    slack_seconds = 0.5

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.topic = ""
        self.sources: list[KafkaSource] = []

    async def __aenter__(self) -> Self:
        self.topic = self.cluster.create_topic()
        self.producer = Producer(
            {"bootstrap.servers": self.cluster.servers, "message.max.bytes": 20_000_000, "log_level": 0}
        )
        return self

    def make_source(self) -> Source:
        self.sources.append(kafka(self.cluster).topics(self.topic, group=f"group-of-{self.topic}"))
        return self.sources[-1]

    async def source(self) -> Source:
        """Open, and in a group that has settled: what is published from now on was delivered to nobody."""
        source = await super().source()
        assert isinstance(source, KafkaSource)
        await eventually_async(lambda: source.joined and any(each.partitions for each in self.sources), 80)
        return source

    async def publish(self, *messages: Message | Delivery, duplicates: int = 0) -> None:
        await asyncio.to_thread(send, self.producer, self.topic, *messages, times=1 + duplicates)

    async def pass_seconds(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def heard(self, source: Source) -> None:
        assert isinstance(source, KafkaSource)
        await source.flush()

    async def lose(self, source: Source) -> None:
        assert isinstance(source, KafkaSource)
        await source.drop()


class Topic:
    """A topic with a group of its own."""

    def __init__(self, cluster: Cluster, partitions: int = 1) -> None:
        self.cluster = cluster
        self.partitions = partitions
        self.name = cluster.create_topic(partitions=partitions)
        self.producer = Producer({"bootstrap.servers": cluster.servers, "log_level": 0})

    async def source(self, config: dict[str, Any] | None = None, **words: Any) -> KafkaSource:
        """Open, and taken in by the group."""
        kafka = Kafka(self.cluster.servers, **{**QUICK, **(config or {})})
        source = kafka.topics(self.name, group=f"group-of-{self.name}", **words)
        await source.open()
        await eventually_async(lambda: source.joined, 80)
        return source

    async def publish(self, *names: str, **words: Any) -> None:
        messages = [Message(id=name, **words) for name in names]
        await asyncio.to_thread(send, self.producer, self.name, *messages)

    async def committed(self) -> list[int]:
        return await asyncio.to_thread(positions, self.cluster, self.name, self.partitions)


async def take(source: KafkaSource, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count:
        found += await received(source)
    return found
