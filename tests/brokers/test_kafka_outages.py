"""What is not there, goes away or stands still, on librdkafka's mock cluster."""

from __future__ import annotations

import asyncio
import logging

import pytest

from oncebox.brokers.kafka import Kafka
from oncebox.errors import BrokerUnavailable, ConfigError
from oncebox.identity import Identity, by_position
from tests.brokers.kafka_bench import QUICK, Topic, kafka_cluster, take
from tests.brokers.suite import ids, received
from tests.servers.kafka import Kafka as Cluster
from tests.servers.process import free_port
from tests.waiting import eventually_async

__all__ = ["kafka_cluster"]
pytestmark = pytest.mark.xdist_group("kafka")


@pytest.fixture
def topic(kafka_cluster: Cluster) -> Topic:
    return Topic(kafka_cluster)


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


async def test_source_says_at_start_where_it_looks_for_ids(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "oncebox.kafka")
    await (await topic.source()).close()
    assert "message-id" in caplog.text
    assert "name another place with identity=Identity(id=…)" in caplog.text
    caplog.clear()
    await (await topic.source(identity=Identity(id=by_position))).close()
    assert "Identity" not in caplog.text
