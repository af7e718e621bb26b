"""`deduplicate="watermark"` on Kafka (librdkafka's mock cluster, which tells no topic's id)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from confluent_kafka import Producer

from oncebox import Backoff, Consumer, Retry
from oncebox.brokers.kafka import Kafka, KafkaSource
from oncebox.core.audit import Act
from oncebox.core.watermark import forget
from oncebox.errors import ConfigError
from oncebox.identity import Identity, by_position
from tests.brokers.kafka_bench import MORTAL, QUICK, Topic, kafka_cluster, positions, take
from tests.core.kit import Call, Shop
from tests.crash.nursery import Child, Nursery
from tests.servers.kafka import Kafka as Cluster
from tests.waiting import eventually_async

__all__ = ["kafka_cluster"]
pytestmark = pytest.mark.xdist_group("kafka-watermark")

PARTITIONS = 2


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch.setattr)


def hasten(setattr: Any = setattr) -> None:  # noqa: A002 - it stands in for it
    setattr("oncebox.brokers.kafka.watermarks.ASK_SECONDS", 0.05)
    setattr("oncebox.core.watermarked.CHANGED_DELAY_SECONDS", 0.3)


def by_watermark(servers: str, topic: str, config: dict[str, Any] = QUICK, **words: Any) -> KafkaSource:
    kafka = Kafka(servers, **config)
    return kafka.topics(
        topic, group=f"group-of-{topic}", type="click", deduplicate="watermark", commit_every=0.1, **words
    )


async def note(call: Call) -> None:
    await call.db.effect(call.payload["id"])


def counting(shop: Shop, source: KafkaSource, **policy: Any) -> Consumer:
    consumer = shop.consumer("stats", source, **policy)
    shop.handler(consumer, "click")(note)
    return consumer


def write(cluster: Cluster, topic: str, names: list[str], partitions: int = 1) -> None:
    """One record each, dealt out over the partitions."""
    producer = Producer({"bootstrap.servers": cluster.servers, "log_level": 0})
    for number, name in enumerate(names):
        producer.produce(topic, b'{"id": "%s"}' % name.encode(), partition=number % partitions)
    assert producer.flush(30) == 0


def marks(shop: Shop) -> list[int]:
    return [last for (last,) in shop.rows(f"SELECT last FROM {shop.table('watermark')} ORDER BY partition")]


def once(names: list[str]) -> dict[str, int]:
    return dict.fromkeys(names, 1)


async def test_places_follow_each_other_and_what_is_put_off_holds_its_partition(
    kafka_cluster: Cluster,
) -> None:
    topic = Topic(kafka_cluster)
    source = await topic.source(deduplicate="watermark")
    await topic.publish("a", "b", "c", "d")
    a, b, c, d = await take(source, 4)
    places = [each.place for each in (a, b, c, d) if each.place is not None]
    assert [(place.offset, place.after, place.topic_id) for place in places] == [
        (0, -1, ""), (1, 0, ""), (2, 1, ""), (3, 2, "")
    ]  # fmt: skip
    await source.ack([a])
    await source.release([d])
    await source.nack(b, 1000)
    await source.release([c])
    await topic.publish("e", key="other")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await source.receive(10)
    await source.close()
    assert await topic.committed() == [1]


async def test_what_is_read_again_has_its_effect_once_without_a_ledger_row(
    kafka_cluster: Cluster, shop: Shop
) -> None:
    topic = kafka_cluster.create_topic(partitions=PARTITIONS)
    names = [f"m{number}" for number in range(100)]
    source = by_watermark(kafka_cluster.servers, topic)
    counting(shop, source, batch=20)
    await asyncio.to_thread(write, kafka_cluster, topic, names, PARTITIONS)
    async with shop.app.running():
        await eventually_async(lambda: shop.effects() == once(names), 60)
        await source.drop()
        await eventually_async(lambda: len(source.partitions) == PARTITIONS, 60)
        more = [f"n{number}" for number in range(20)]
        await asyncio.to_thread(write, kafka_cluster, topic, more, PARTITIONS)
        await eventually_async(lambda: shop.effects() == once(names + more), 60)
    assert marks(shop) == [59, 59]
    assert shop.count("ledger") == 0


async def test_failing_message_goes_to_the_queue_and_its_partition_goes_on(
    kafka_cluster: Cluster, shop: Shop
) -> None:
    topic = kafka_cluster.create_topic()
    patient = Backoff(attempts=1_000)
    stats = shop.consumer("stats", by_watermark(kafka_cluster.servers, topic), retry=patient)
    gate = shop.gate()

    @shop.handler(stats, "click")
    async def first_time_fails(call: Call) -> None:
        if call.payload["id"] == "late" and not gate._open.is_set():
            raise Retry("not yet", after=0.2)
        await note(call)

    await asyncio.to_thread(write, kafka_cluster, topic, ["a", "late", "b"])
    async with shop.app.running():
        await eventually_async(lambda: shop.effects() == once(["a", "b"]) and marks(shop) == [2], 60)
        gate.open()
        await eventually_async(lambda: shop.effects() == once(["a", "b", "late"]), 60)
    [(name,)] = shop.rows(f"SELECT message_id FROM {shop.table('ledger')}")
    assert name.startswith(f"{topic}:0:1@"), "told by its place"


async def test_topic_that_was_made_again_stands_still_until_somebody_says_so(
    kafka_cluster: Cluster, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka_cluster.create_topic()
    source = by_watermark(kafka_cluster.servers, topic)
    counting(shop, source)
    await asyncio.to_thread(write, kafka_cluster, topic, ["a", "b", "c"])
    async with shop.app.running():
        await eventually_async(lambda: shop.effects() == once(["a", "b", "c"]), 60)
    kafka_cluster.delete_topic(topic)
    kafka_cluster.create_topic(topic)
    await asyncio.to_thread(write, kafka_cluster, topic, ["x", "y"])
    again = Shop("psycopg-async", shop._url, "inline")
    # The mock keeps a group's positions when its topic goes; Kafka does not.
    fresh = Kafka(kafka_cluster.servers, **QUICK).topics(
        topic, group=f"new-group-of-{topic}", type="click", deduplicate="watermark"
    )
    stats = counting(again, fresh)
    try:
        with caplog.at_level(logging.WARNING, "oncebox"):
            async with again.app.running():
                await eventually_async(lambda: "oncebox watermarks forget" in caplog.text, 60)
                assert "it ends at offset 2, and offset 2 is handled" in caplog.text
                assert again.effects() == once(["a", "b", "c"])
                act = Act(verb="watermarks forget", who="me", reason="made again")
                await again.perform(stats, lambda work: forget(work.queries, "stats", topic, None, act))
                await eventually_async(lambda: again.effects() == once(["a", "b", "c", "x", "y"]), 60)
    finally:
        await again.close()


async def test_consumers_die_join_and_leave_and_nothing_is_lost_or_doubled(
    kafka_cluster: Cluster, shop: Shop, shop_database: str, nursery: Nursery
) -> None:
    topic = kafka_cluster.create_topic(partitions=PARTITIONS)
    words = {"servers": kafka_cluster.servers, "topic": topic, "url": shop_database}
    names = [f"m{number}" for number in range(240)]
    children: list[Child] = []

    def born() -> None:
        children.append(nursery.fork("tests.brokers.test_kafka_watermark:consume", **words))

    born()
    for part in range(4):
        share = names[part * 60 : (part + 1) * 60]
        before = shop.effects().total()
        await asyncio.to_thread(write, kafka_cluster, topic, share, PARTITIONS)
        await eventually_async(lambda before=before: shop.effects().total() > before + 10, 60)  # type: ignore[misc]
        born()
        if part:
            children[part - 1].kill()
            children[part - 1].wait()
    await eventually_async(lambda: shop.effects() == once(names), 90)
    await eventually_async(lambda: shop.count("queue") == 0, 30)
    for child in children:
        child.kill()
        child.wait()
    assert marks(shop) == [119, 119]
    assert shop.count("dead") == 0
    assert max(await asyncio.to_thread(positions, kafka_cluster, topic, PARTITIONS)) <= 120


def consume(servers: str, topic: str, url: str) -> None:
    """In a process of its own, which is killed."""
    from oncebox.brokers.kafka import watermarks

    watermarks.ASK_SECONDS = 0.05

    async def serve() -> None:
        shop = Shop("psycopg-async", url, heartbeat_seconds=0.2, lapse_seconds=1.0)
        counting(shop, by_watermark(servers, topic, MORTAL), batch=7, concurrency=2)
        async with shop.app.running():
            await asyncio.Event().wait()

    asyncio.run(serve())


@pytest.mark.parametrize(
    "policy",
    [
        {"mode": "stored"},
        {"durability": "group"},
        {"observe": True},
        {"order_by": "key"},
        {"keep_payload": "always"},
        {"replay": "rebuild"},
        {"archive": "old"},
        {"identity": Identity(source="s")},
    ],
    ids=lambda policy: next(iter(policy)),
)
def test_what_needs_the_ledger_is_refused(policy: dict[str, Any], sqlite_url: str) -> None:
    shop = Shop("sqlite", sqlite_url)
    with pytest.raises(ConfigError, match=r"consumer 'stats': .*watermark"):
        shop.consumer("stats", by_watermark("localhost:1", "clicks"), **policy)


def test_words_that_do_not_fit_are_refused() -> None:
    kafka = Kafka("localhost:1")
    with pytest.raises(ConfigError, match="deduplicate='offset': it is one of 'ledger', 'watermark'"):
        kafka.topics("clicks", group="g", deduplicate="offset")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tells messages by their place"):
        kafka.topics("clicks", group="g", deduplicate="watermark", identity=Identity(id=by_position))
