"""Dead messages on a topic of their own (librdkafka's mock cluster): as they came, and never lost on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import Producer

from oncebox import Backoff, Dead
from oncebox.brokers.contract import Delivery
from oncebox.brokers.kafka import Kafka, KafkaSource
from oncebox.errors import BrokerUnavailable, ConfigError
from tests.brokers.kafka_bench import QUICK, kafka_cluster, positions, send
from tests.brokers.suite import received
from tests.brokers.test_kafka_sink import lies_there
from tests.core.kit import Call, Shop, effect, event
from tests.servers.kafka import Kafka as Cluster
from tests.waiting import eventually_async

__all__ = ["kafka_cluster"]
pytestmark = pytest.mark.xdist_group("kafka")

HEADERS = (("id", b"7"), ("blob", b"\xff\xfe"), ("x", b"1"), ("x", b"2"))


async def opened(cluster: Cluster, topic: str, dead: str | None) -> KafkaSource:
    source = Kafka(cluster.servers, **QUICK).topics(topic, group=f"group-of-{topic}", dead_letter=dead)
    await source.open()
    return source


async def test_dead_message_is_there_with_id_key_and_headers_before_it_is_passed(
    kafka_cluster: Cluster,
) -> None:
    topic, dead = kafka_cluster.create_topic(), kafka_cluster.create_topic()
    source = await opened(kafka_cluster, topic, dead)
    producer = Producer({"bootstrap.servers": kafka_cluster.servers, "log_level": 0})
    producer.produce(topic, b"{", key=b"\x00\x07", headers=list(HEADERS))
    await asyncio.to_thread(send, producer, topic, Delivery(body=b"good"))
    both: list[Delivery] = []
    while len(both) < 2:
        both += await received(source)
    await source.bury(both[0], "undecodable")
    await source.ack(both[1:])
    await source.close()
    assert await asyncio.to_thread(positions, kafka_cluster, topic) == [2]
    [found] = await asyncio.to_thread(lies_there, kafka_cluster, dead, 1)
    assert (found.body, found.properties["key"]) == (b"{", b"\x00\x07")
    assert found.properties["message_id"] == "7"
    assert found.headers == (
        *HEADERS,
        ("oncebox-reason", b"undecodable"),
        ("oncebox-origin", f"{topic}:0:0".encode()),
    )


async def test_dead_message_that_can_not_be_written_is_not_passed(
    kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncebox.brokers.kafka.deadletter.AGAIN_SECONDS", 0.1)
    topic, dead = kafka_cluster.create_topic(), kafka_cluster.create_topic()
    kafka = Kafka(kafka_cluster.servers, **{**QUICK, "message.max.bytes": 2_000})
    source = kafka.topics(topic, group=f"group-of-{topic}", dead_letter=dead)
    await source.open()
    producer = Producer({"bootstrap.servers": kafka_cluster.servers, "log_level": 0})
    await asyncio.to_thread(send, producer, topic, Delivery(body=bytes(5_000)))
    [large] = await received(source)
    await source.bury(large, "terminal")
    [again] = await received(source)
    assert (again.redelivered, again.provenance["offset"]) == (True, 0)
    await source.close()
    assert await asyncio.to_thread(positions, kafka_cluster, topic) == [0]


async def test_without_a_topic_for_them_dead_messages_are_passed(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.create_topic()
    source = await opened(kafka_cluster, topic, None)
    producer = Producer({"bootstrap.servers": kafka_cluster.servers, "log_level": 0})
    await asyncio.to_thread(send, producer, topic, Delivery(body=b"{"))
    [delivery] = await received(source)
    await source.bury(delivery, "terminal")
    await source.close()
    assert await asyncio.to_thread(positions, kafka_cluster, topic) == [1]


async def test_dead_letter_topic_that_can_not_be_is_named(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.create_topic()
    with pytest.raises(ConfigError, match="no topic 'nowhere'"):
        await opened(kafka_cluster, topic, "nowhere")
    with pytest.raises(ConfigError, match="another topic's name"):
        await opened(kafka_cluster, topic, topic)


async def test_message_that_an_app_can_not_handle_is_dead_and_on_its_topic(
    kafka_cluster: Cluster, shop: Shop
) -> None:
    topic, dead = kafka_cluster.create_topic(), kafka_cluster.create_topic()
    source = Kafka(kafka_cluster.servers, **QUICK).topics(topic, group=f"group-of-{topic}", dead_letter=dead)
    billing = shop.consumer("billing", source)

    @shop.handler(billing, "poison")
    async def fails(call: Call) -> None:
        raise Dead("never")

    shop.handler(billing, "paid")(effect)
    producer = Producer({"bootstrap.servers": kafka_cluster.servers, "log_level": 0})
    poison = event("bad", type="poison", headers=HEADERS[1:])
    await asyncio.to_thread(send, producer, topic, poison, event("good"))
    async with shop.app.running():
        await eventually_async(lambda: shop.count("dead") == 1 and shop.effects() == {"good": 1}, 30)
    assert await asyncio.to_thread(positions, kafka_cluster, topic) == [2]
    [found] = await asyncio.to_thread(lies_there, kafka_cluster, dead, 1)
    assert found.properties["message_id"] == "bad"
    assert tuple(pair for pair in found.headers if pair in HEADERS) == HEADERS[1:]
    assert ("oncebox-reason", b"terminal") in found.headers


@pytest.mark.parametrize("mode", ["inline", "stored"])
async def test_message_that_dies_in_the_queue_is_on_the_topic_too(
    kafka_cluster: Cluster, shop: Shop, mode: str
) -> None:
    topic, dead = kafka_cluster.create_topic(), kafka_cluster.create_topic()
    source = Kafka(kafka_cluster.servers, **QUICK).topics(topic, group=f"group-of-{topic}", dead_letter=dead)
    billing = shop.consumer("billing", source, mode=mode, retry=Backoff(attempts=2, base_seconds=0))

    @shop.handler(billing, "poison")
    async def fails(call: Call) -> None:
        raise RuntimeError("not this time either")

    producer = Producer({"bootstrap.servers": kafka_cluster.servers, "log_level": 0})
    poison = event("bad", type="poison", key="k", payload={"n": 1}, headers=HEADERS[1:])
    await asyncio.to_thread(send, producer, topic, poison)
    async with shop.app.running():
        await eventually_async(lambda: shop.count("dead") == 1, 30)
        [found] = await asyncio.to_thread(lies_there, kafka_cluster, dead, 1)
    assert (found.body, found.key) == (b'{"n":1}', "k")
    assert (found.properties["message_id"], found.properties["type"]) == ("bad", "poison")
    assert tuple(pair for pair in found.headers if pair in HEADERS) == HEADERS[1:]
    assert found.headers[-2:] == (
        ("oncebox-reason", b"exhausted"),
        ("oncebox-origin", f"{topic}:0:0".encode()),
    )
    assert len(shop.attempts("bad")) == 2


async def test_copy_is_tried_again_until_it_is_there(
    kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncebox.brokers.kafka.deadletter.AGAIN_SECONDS", 0.1)
    topic, dead = kafka_cluster.create_topic(), kafka_cluster.create_topic()
    source = await opened(kafka_cluster, topic, dead)
    assert source._dead_letters is not None
    write, failures = source._dead_letters._writer.write, [1, 2, 3]

    async def fails_at_first(records: Any) -> Any:
        if failures:
            failures.pop()
            return [BrokerUnavailable("away")]
        return await write(records)

    monkeypatch.setattr(source._dead_letters._writer, "write", fails_at_first)
    await source.copy_dead(event("bad"), "exhausted")
    [found] = await asyncio.to_thread(lies_there, kafka_cluster, dead, 1)
    await source.close()
    assert (found.properties["message_id"], failures) == ("bad", [])


async def test_without_a_topic_for_them_no_copy_is_made(kafka_cluster: Cluster) -> None:
    source = await opened(kafka_cluster, kafka_cluster.create_topic(), None)
    await source.copy_dead(event("bad"), "exhausted")
    await source.close()
