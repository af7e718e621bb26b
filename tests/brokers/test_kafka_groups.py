"""Consumer groups, positions and outages, on librdkafka's mock cluster."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from confluent_kafka import Producer

from oncebox.brokers.contract import Delivery
from oncebox.brokers.kafka import Kafka, KafkaSource
from oncebox.errors import BrokerUnavailable, ConfigError
from oncebox.message import Message
from tests.brokers.kafka_bench import QUICK, kafka_cluster, positions, send
from tests.brokers.suite import ids, received
from tests.servers.kafka import Kafka as Cluster
from tests.servers.process import free_port
from tests.waiting import eventually_async

__all__ = ["kafka_cluster"]
pytestmark = pytest.mark.xdist_group("kafka")


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
        await eventually_async(lambda: source.joined, 30)
        return source

    async def publish(self, *names: str, **words: Any) -> None:
        messages = [Message(id=name, **words) for name in names]
        await asyncio.to_thread(send, self.producer, self.name, *messages)

    async def committed(self) -> list[int]:
        return await asyncio.to_thread(positions, self.cluster, self.name, self.partitions)


@pytest.fixture
def topic(kafka_cluster: Cluster) -> Topic:
    return Topic(kafka_cluster)


async def take(source: KafkaSource, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count:
        found += await received(source)
    return found


async def test_position_waits_for_the_first_unfinished(topic: Topic) -> None:
    source = await topic.source()
    await topic.publish("a", "b", "c")
    a, b, c = await take(source, 3)
    await source.ack([b, c])
    await source.flush()
    assert await topic.committed() == [0]
    await source.ack([a])
    await source.flush()
    assert await topic.committed() == [3]
    await source.close()


async def test_positions_are_committed_by_themselves(topic: Topic) -> None:
    source = await topic.source(commit_every=0.1)
    await topic.publish("a")
    await source.ack(await received(source))
    async with asyncio.timeout(30):
        while await topic.committed() != [1]:
            pass
    await source.close()


async def test_put_off_message_lets_the_partition_go_on_and_is_read_again_after_a_death(topic: Topic) -> None:
    source = await topic.source()
    await topic.publish("a", key="k")
    [a] = await received(source)
    await source.nack(a, 1000)
    await topic.publish("b", key="other")
    await topic.publish("c", key="k")
    await topic.publish("d")
    others = await take(source, 2)
    assert ids(others) == ["b", "d"], "c is of the same key, and waits behind a"
    await source.ack(others)
    await source.flush()
    await source.drop()
    again = await take(source, 4)
    assert ids(again) == ["a", "b", "c", "d"]
    assert all(delivery.redelivered for delivery in again)
    await source.close()


async def test_revoked_partition_is_drained_and_its_position_goes_along(kafka_cluster: Cluster) -> None:
    topic = Topic(kafka_cluster, partitions=2)
    first = await topic.source(drain=20.0)
    await eventually_async(lambda: len(first.partitions) == 2, 30)
    for number in range(20):
        await topic.publish(f"m{number}", key=str(number))
    held = await take(first, 20)
    joining = asyncio.create_task(topic.source(drain=20.0))
    # It is asked to give one up, and does not before what is in hand is finished.
    await eventually_async(lambda: any(lane.recalled for lane in first._desk.lanes()), 30)
    assert len(first.partitions) == 2
    await first.ack(held)
    second = await joining
    await eventually_async(lambda: len(second.partitions) == 1 and len(first.partitions) == 1, 30)
    await topic.publish("last")
    waiting = [asyncio.create_task(received(source)) for source in (first, second)]
    done, late = await asyncio.wait(waiting, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert [ids(task.result()) for task in done] == [["last"]], "nothing that was acked comes again"
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    await first.close()
    await second.close()


async def test_revoked_partition_with_work_that_does_not_end_is_given_up_uncommitted(
    kafka_cluster: Cluster,
) -> None:
    topic = Topic(kafka_cluster, partitions=2)
    first = await topic.source(drain=0.0)
    await eventually_async(lambda: len(first.partitions) == 2, 30)
    for number in range(10):
        await topic.publish(f"m{number}", key=str(number))
    held = await take(first, 10)
    second = await topic.source()
    await eventually_async(lambda: len(second.partitions) == 1, 30)
    moved = {delivery.properties["message_id"] for delivery in held} - {
        delivery.properties["message_id"]
        for delivery in held
        if (topic.name, delivery.provenance["partition"]) in first.partitions
    }
    again = await take(second, len(moved))
    assert set(ids(again)) == moved
    assert all(delivery.redelivered for delivery in again)
    # They come late: the partition is another's, and so is its position.
    await first.ack(held)
    await first.flush()
    [place] = second.partitions
    assert (await topic.committed())[place[1]] == 0
    await first.close()
    await second.close()


async def test_handler_longer_than_the_poll_interval_keeps_its_partition(topic: Topic) -> None:
    config = {"max.poll.interval.ms": 1_500}
    source = await topic.source(config, prefetch=2, drain=1.0)
    await topic.publish(*(f"m{number}" for number in range(10)))
    held = await received(source, limit=1)
    # The buffer is full and stays so: the partition is paused, and polled all the same.
    await eventually_async(lambda: all(lane.paused for lane in source._desk.lanes()), 30)
    other = await topic.source(config, drain=1.0)
    await asyncio.sleep(3)
    assert (source.partitions, other.partitions) == ([(topic.name, 0)], [])
    await source.ack(held)
    rest = await take(source, 9)
    assert ids(held + rest) == [f"m{number}" for number in range(10)]
    await source.ack(rest)
    await source.flush()
    assert await topic.committed() == [10]
    await source.close()
    await other.close()


async def test_buffer_is_bounded_and_everything_comes_in_order(topic: Topic) -> None:
    source = await topic.source(prefetch=50)
    names = [f"m{number}" for number in range(1_000)]
    await topic.publish(*names)
    most = 0
    seen: list[str] = []
    while len(seen) < len(names):
        most = max(most, len(source._desk._fresh))
        deliveries = await received(source, limit=7)
        seen += ids(deliveries)
        await source.ack(deliveries)
    assert seen == names
    assert most < 50 + 101, "the bound, and what one more look at the client brings"
    await source.close()


async def test_partition_is_read_no_further_ahead_than_its_window(topic: Topic) -> None:
    source = await topic.source(window=20)
    await topic.publish(*(f"m{number}" for number in range(20)))
    first, *rest = await take(source, 20)
    await source.ack(rest)
    await eventually_async(lambda: all(lane.paused for lane in source._desk.lanes()), 30)
    await topic.publish("ahead")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await source.receive(10)
    await source.ack([first])
    assert ids(await received(source)) == ["ahead"]
    await source.close()


async def test_brokers_that_are_away_are_named_once_and_then_all_is_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "oncebox")
    with Cluster() as cluster:
        topic = Topic(cluster)
        source = await topic.source()
        await topic.publish("a")
        await source.ack(await received(source))
        waiting = asyncio.create_task(received(source))
        await asyncio.to_thread(cluster.go_down)
        with pytest.raises(BrokerUnavailable, match=cluster.servers):
            await waiting
        with pytest.raises(BrokerUnavailable):
            await received(source)
        assert len([record for record in caplog.records if record.name == "oncebox.kafka"]) < 10
        await asyncio.to_thread(cluster.come_up)
        await topic.publish("b")
        found: list[str] = []
        async with asyncio.timeout(60):
            while "b" not in found:
                try:
                    found += ids(await received(source))
                except BrokerUnavailable:
                    await asyncio.sleep(0.05)
        await source.close()


async def test_broker_that_stands_still_for_a_while_loses_nothing() -> None:
    with Cluster() as cluster:
        topic = Topic(cluster)
        source = await topic.source()
        await topic.publish("a", "b")
        held = await take(source, 2)
        cluster.freeze()
        await asyncio.sleep(2)
        cluster.thaw()
        await source.ack(held)
        await topic.publish("c")
        seen: set[str] = set()
        while "c" not in seen:
            deliveries = await received(source)
            seen |= set(ids(deliveries))
            await source.ack(deliveries)
        await source.close()
        assert await topic.committed() == [3]


async def test_missing_topic_is_named_with_how_to_create_it(kafka_cluster: Cluster) -> None:
    kafka = Kafka(kafka_cluster.servers, **QUICK)
    for opened in (kafka.topics("nowhere", group="g"), kafka.topic("nowhere")):
        with pytest.raises(ConfigError, match=r"no topic 'nowhere'; create it: kafka-topics\.sh --create"):
            await opened.open()
        await opened.close()


async def test_broker_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncebox.brokers.kafka.source.OPEN_SECONDS", 0.5)
    monkeypatch.setattr("oncebox.brokers.kafka.producing.OPEN_SECONDS", 0.5)
    address = f"127.0.0.1:{free_port()}"
    kafka = Kafka(address)
    for opened in (kafka.topics("orders", group="g"), kafka.topic("events")):
        with pytest.raises(BrokerUnavailable, match=f"Kafka at {address}.*is it running"):
            await opened.open()
        await opened.close()


async def test_setting_that_does_not_exist_is_named(kafka_cluster: Cluster) -> None:
    kafka = Kafka(kafka_cluster.servers, no_such_thing=1)
    for opened in (kafka.topics("orders", group="g"), kafka.topic("events")):
        with pytest.raises(ConfigError, match=r"no\.such\.thing"):
            await opened.open()


async def test_pattern_subscribes_to_what_it_matches(kafka_cluster: Cluster) -> None:
    name = kafka_cluster.create_topic("pattern-one")
    source = Kafka(kafka_cluster.servers, **QUICK).topics("^pattern-.*", group="patterns")
    await source.open()
    await eventually_async(lambda: source.partitions == [(name, 0)], 30)
    await source.close()
    with pytest.raises(ConfigError, match="is no pattern"):
        await Kafka(kafka_cluster.servers, **QUICK).topics("^(", group="patterns").open()
