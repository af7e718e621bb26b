"""Publishing to Kafka (librdkafka's mock cluster): one confirmation per message, from the broker."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Consumer

from oncebox.brokers.contract import Delivery
from oncebox.brokers.kafka import Kafka
from oncebox.brokers.kafka.records import delivery
from oncebox.errors import BrokerUnavailable, TooLarge
from oncebox.identity import Identity
from oncebox.message import Message
from tests.brokers.kafka_bench import QUICK, kafka_cluster
from tests.servers.kafka import Kafka as Cluster

__all__ = ["kafka_cluster"]
pytestmark = pytest.mark.xdist_group("kafka")


def lies_there(cluster: Cluster, topic: str, count: int) -> list[Delivery]:
    """What is in a topic, read by somebody else."""
    reader = Consumer(
        {"bootstrap.servers": cluster.servers, "group.id": f"reader-of-{topic}", "log_level": 0,
         "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10}
    )  # fmt: skip
    reader.subscribe([topic])
    try:
        found: list[Delivery] = []
        for _ in range(300):
            records = reader.consume(count, 0.1)
            found += [delivery(record) for record in records]
            if len(found) >= count:
                return found
        raise AssertionError(f"{len(found)} of {count} messages in {topic}")
    finally:
        reader.close()


async def test_published_message_is_there_with_all_it_carries(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.create_topic()
    sink = Kafka(kafka_cluster.servers, **QUICK).topic(topic)
    await sink.open()
    message = Message(
        id="é 1", type="paid", source="shop", payload=b"<a/>", key="k", content_type="text/xml",
        headers=(("blob", b"\xff\x00"), ("twice", b"1"), ("twice", b"2"), ("empty", b"")),
    )  # fmt: skip
    gone = Message(id="2", key="k", provenance={"topic": "orders", "offset": 3, "tombstone": True})
    assert await sink.publish([message, gone]) == [None, None]
    await sink.close()
    first, second = await asyncio.to_thread(lies_there, kafka_cluster, topic, 2)
    who = Identity().resolve(first)
    assert (who.id, who.type, who.source, who.content_type) == ("é 1", "paid", "shop", "text/xml")
    assert (first.body, first.key) == (b"<a/>", "k")
    assert tuple(pair for pair in first.headers if pair in message.headers) == message.headers
    assert Identity().resolve(second).id == "2"
    assert second.provenance["tombstone"] is True


async def test_messages_of_a_key_stay_in_order_in_one_partition(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.create_topic(partitions=4)
    sink = Kafka(kafka_cluster.servers, **QUICK).topic(topic)
    await sink.open()
    for turn in range(3):
        batch = [Message(id=f"{turn}-{number}", key=f"k{number % 7}") for number in range(70)]
        assert await sink.publish(batch) == [None] * 70
    await sink.close()
    found = await asyncio.to_thread(lies_there, kafka_cluster, topic, 210)
    for key in {each.key for each in found}:
        mine = [each for each in found if each.key == key]
        assert len({each.provenance["partition"] for each in mine}) == 1
        sent = [each.properties["message_id"] for each in mine]
        assert sent == sorted(sent, key=lambda name: tuple(map(int, name.split("-"))))


async def test_publication_goes_to_the_topic_it_names(kafka_cluster: Cluster) -> None:
    own, other = kafka_cluster.create_topic(), kafka_cluster.create_topic()
    sink = Kafka(kafka_cluster.servers, **QUICK).topic(own)
    await sink.open()
    assert await sink.publish([Message(id="a", provenance={"topic": other})]) == [None]
    await sink.close()
    [found] = await asyncio.to_thread(lies_there, kafka_cluster, other, 1)
    assert found.properties["message_id"] == "a"


async def test_message_that_is_too_large_is_refused_alone(kafka_cluster: Cluster) -> None:
    sink = Kafka(kafka_cluster.servers).topic(
        kafka_cluster.create_topic(), config={"message.max.bytes": 100_000}
    )
    await sink.open()
    answers = await sink.publish([Message(id="a"), Message(id="b", payload=bytes(200_000)), Message(id="c")])
    await sink.close()
    assert (answers[0], answers[2]) == (None, None)
    assert isinstance(answers[1], TooLarge)
    assert not answers[1].retryable


async def test_nothing_is_confirmed_while_the_brokers_are_away_and_the_sink_goes_on_after() -> None:
    with Cluster() as cluster:
        topic = cluster.create_topic()
        sink = Kafka(cluster.servers, **QUICK).topic(topic, config={"message.timeout.ms": 3_000})
        await sink.open()
        assert await sink.publish([Message(id="a")]) == [None]
        await asyncio.to_thread(cluster.go_down)
        answers = await sink.publish([Message(id="b"), Message(id="c")])
        assert [type(answer) for answer in answers] == [BrokerUnavailable, BrokerUnavailable]
        await asyncio.to_thread(cluster.come_up)
        async with asyncio.timeout(60):
            while await sink.publish([Message(id="b")]) != [None]:
                pass
        await sink.close()
        found = await asyncio.to_thread(lies_there, cluster, topic, 2)
        assert [each.properties["message_id"] for each in found][:1] == ["a"]


async def test_cancelled_publish_and_an_empty_one_leave_the_sink_usable(kafka_cluster: Cluster) -> None:
    sink = Kafka(kafka_cluster.servers, **QUICK).topic(kafka_cluster.create_topic())
    await sink.open()
    assert await sink.publish([]) == []
    publishing = asyncio.create_task(sink.publish([Message(id="a")]))
    await asyncio.sleep(0)
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)
    assert await sink.publish([Message(id="a")]) == [None]
    await sink.close()
    await sink.close()
