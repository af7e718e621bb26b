"""Brokers that are set up against their consumers: asked for real, without subscribing or creating anything."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from nats.js import api

from oncebox import App
from oncebox.brokers.kafka import Kafka
from oncebox.brokers.kafka.watermarks import Incarnations
from oncebox.brokers.nats import Nats
from oncebox.brokers.nats.connection import Connection
from oncebox.brokers.redis import Redis
from oncebox.brokers.sqs import Sqs
from oncebox.doctor.brokers import check_brokers, check_sinks
from oncebox.doctor.policies import check_policies
from oncebox.errors import ConfigError
from oncebox.identity import Identity, field
from oncebox.schema import migrate
from tests.brokers.kafka_bench import QUICK, kafka, kafka_cluster
from tests.brokers.nats_bench import nats_server
from tests.brokers.redis_bench import make_server, redis_of
from tests.brokers.sqs_bench import client, moto, session
from tests.conftest import missing
from tests.doctor.kit import Findings, asked
from tests.servers import Unavailable
from tests.servers.kafka import Kafka as Cluster
from tests.servers.moto import REGION
from tests.servers.nats import NatsServer
from tests.servers.rabbitmq import RabbitMQServer, shared_node
from tests.waiting import eventually_async

__all__ = ["kafka_cluster", "nats_server"]

_numbers = itertools.count(1)


def new_name() -> str:
    return f"doctor-{os.getpid()}-{next(_numbers)}"


async def checked(source: Any, **policy: Any) -> Findings:
    """What is said about a consumer of this source."""
    app = App("sqlite:///never-opened.db")
    billing = app.consumer("billing", source, **policy)

    @billing.handler("paid")
    async def paid(payment: dict[str, int]) -> None: ...

    return Findings([*await check_brokers(app.consumers.values()), *check_policies(app)])


async def stream(server: NatsServer, *, max_age: float = 0.0, storage: str = "file", **consumer: Any) -> Any:
    """A stream with a durable consumer, and a source of it."""
    name = new_name()
    connection = Connection([server.url], None, {})
    js = connection.jetstream(await connection.join(connection))
    try:
        await js.add_stream(name=name, subjects=[name], storage=storage, max_age=max_age)
        words = {"ack_policy": api.AckPolicy.EXPLICIT, "ack_wait": 30.0, "max_deliver": -1, **consumer}
        await js.add_consumer(name, api.ConsumerConfig(durable_name="billing", **words))
    finally:
        await connection.leave(connection)
    return Nats(server.url).stream(name, consumer="billing")


async def test_a_broker_that_can_not_be_reached() -> None:
    found = await checked(Nats("nats://127.0.0.1:1").stream("S", consumer="c"), retention=86_400.0)
    assert found.codes == {"source-unreachable"}


async def test_sinks_are_looked_at_as_well(nats_server: NatsServer) -> None:
    known, missing_ = f"doctor-{os.getpid()}-{next(_numbers)}", new_name()
    connection = Connection([nats_server.url], None, {})
    js = connection.jetstream(await connection.join(connection))
    await js.add_stream(name=known, subjects=[known])
    await connection.leave(connection)
    nats = Nats(nats_server.url)
    there, nowhere = nats.subject(known), nats.subject(missing_)
    away = Nats("nats://127.0.0.1:1").subject("events")
    made = nats.subject(missing_, stream=missing_, create=True)
    app = App(
        "sqlite:///never-opened.db", sink={"a.*": there, "b.*": nowhere, "c.*": away, "d.*": made, "e": there}
    )
    found = Findings(await check_sinks(app.sinks))
    assert found.codes == {"sink-unusable", "sink-unreachable"}
    assert f"takes subject '{missing_}'" in found.of("sink-unusable").what
    assert found.of("sink-unreachable").subject == "sink events"
    with pytest.raises(ConfigError, match="no stream"):
        await nats.subject(missing_).open()


async def test_a_stream_that_gives_up_and_waits_too_little(nats_server: NatsServer) -> None:
    source = await stream(nats_server, storage="memory", max_deliver=5, ack_wait=4.0)
    found = await checked(source, retention=86_400.0)
    assert found.codes == {"source-drops", "source-gives-up", "source-visibility", "source-volatile"}
    assert "5 deliveries" in found.of("source-gives-up").what


async def test_a_consumer_that_acks_by_itself(nats_server: NatsServer) -> None:
    source = await stream(nats_server, ack_policy=api.AckPolicy.NONE, ack_wait=None)
    found = await checked(source, retention=86_400.0)
    assert "acks what was not handled" in found.of("source-unusable").what


async def test_a_ledger_that_forgets_before_its_stream_does(nats_server: NatsServer) -> None:
    source = await stream(nats_server, max_age=7 * 86_400.0)
    found = await checked(source, retention=86_400.0)
    assert found.codes == {"window-short"}
    assert (await checked(source, retention=8 * 86_400.0)) == []
    assert (await checked(await stream(nats_server))).codes == {"window-unbounded"}


async def test_nothing_is_created_and_nothing_is_joined(
    nats_server: NatsServer, kafka_cluster: Cluster
) -> None:
    name = new_name()
    source = Nats(nats_server.url).stream(name, consumer="billing", create=True)
    assert "source-unusable" in (await checked(source)).codes
    with pytest.raises(ConfigError, match="does not exist"):
        await Nats(nats_server.url).stream(name, consumer="billing").open()
    member = kafka(kafka_cluster).topics(kafka_cluster.create_topic(), group="billing", retention=86_400.0)
    assert await checked(member) == []
    assert not member.joined


async def test_a_topic_that_is_not_there(kafka_cluster: Cluster) -> None:
    found = await checked(kafka(kafka_cluster).topics("nowhere", group="billing", retention=86_400.0))
    assert "there is no topic 'nowhere'" in found.of("source-unusable").what


def test_offsets_can_not_be_committed_by_themselves() -> None:
    with pytest.raises(ConfigError, match=r"enable\.auto\.commit can't be set"):
        Kafka("localhost:9092", enable_auto_commit=True)


async def test_a_server_that_forgets_and_a_visibility_that_is_short() -> None:
    with make_server("--appendonly", "no") as server:
        async with redis_of(server.url) as outside:
            await outside.xgroup_create("payments", "billing", "0", mkstream=True)
        source = Redis(server.url).stream("payments", group="billing", visibility_seconds=5.0)
        found = await checked(source, retention=86_400.0)
    assert found.codes == {"source-volatile", "source-visibility"}
    assert "append-only" in found.of("source-volatile").what


async def test_a_queue_that_gives_up_before_its_consumer() -> None:
    dead, name = new_name(), new_name()
    async with client() as bare:
        await bare.create_queue(QueueName=dead)
        policy = {
            "maxReceiveCount": "3",
            "deadLetterTargetArn": f"arn:aws:sqs:{REGION}:123456789012:{dead}",
        }
        words = {"RedrivePolicy": json.dumps(policy), "MessageRetentionPeriod": "86400"}
        await bare.create_queue(QueueName=name, Attributes=words)
    sqs = Sqs(region=REGION, endpoint_url=moto().url, session=session())
    source = sqs.queue(name, identity=Identity(id=field("id")))
    found = await checked(source, retention=3600.0)
    assert found.codes == {"source-gives-up", "window-short"}
    assert "3 deliveries; the consumer makes 8 attempts" in found.of("source-gives-up").what


@pytest.fixture
def rabbitmq() -> Iterator[RabbitMQServer]:
    try:
        yield shared_node()
    except Unavailable as error:
        missing(error)


@pytest.mark.xdist_group("rabbitmq")
async def test_a_queue_that_drops_and_a_handler_that_may_take_too_long(rabbitmq: RabbitMQServer) -> None:
    from oncebox.brokers.rabbitmq import RabbitMQ

    name = rabbitmq.new_name()
    made = RabbitMQ(rabbitmq.url).queue(name, create=True, delivery_limit=20)
    await made.open()
    await made.close()
    source = RabbitMQ(rabbitmq.url).queue(name)
    found = await checked(source, timeout_seconds=3600.0, retention=86_400.0)
    assert found.codes == {"source-drops", "source-timeout"}
    stored = await checked(source, timeout_seconds=3600.0, retention=86_400.0, mode="stored")
    assert stored.codes == {"source-drops"}


class Clicks:
    """A consumer by watermark that has handled three messages of a topic."""

    def __init__(self, cluster: Cluster, url: str) -> None:
        migrate(url)
        self.cluster = cluster
        self.topic = cluster.create_topic()
        self.app = App(url)
        kafka = Kafka(cluster.servers, **QUICK)
        source = kafka.topics(self.topic, group=self.topic, type="click", deduplicate="watermark")
        self.handled = 0

        @self.app.consumer("stats", source).handler("click")
        async def click(body: bytes) -> None:
            self.handled += 1

    async def write(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.servers, "log_level": 0})
        for number in range(count):
            producer.produce(self.topic, b"%d" % number, partition=0)
        assert await asyncio.to_thread(producer.flush, 30) == 0

    async def handle(self) -> None:
        await self.write(3)
        async with self.app.running():
            await eventually_async(lambda: self.handled == 3, 60)
        assert "watermark-strayed" not in (await asked(self.app)).codes


async def test_kafka_topic_that_was_made_again(kafka_cluster: Cluster, sqlite_url: str) -> None:
    """Its watermark is beyond its end: nothing of it would be handled."""
    clicks = Clicks(kafka_cluster, sqlite_url)
    await clicks.handle()
    kafka_cluster.delete_topic(clicks.topic)
    kafka_cluster.create_topic(clicks.topic)
    await clicks.write(2)
    finding = (await asked(clicks.app)).of("watermark-strayed")
    assert finding.what == f"{clicks.topic}[0] ends at offset 2, and offset 2 is handled"
    await clicks.app.aclose()


async def test_kafka_topic_that_was_made_again_and_is_longer_by_now(
    kafka_cluster: Cluster, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mock cluster tells no topic's id, so that a real one's answer is put in its place."""
    monkeypatch.setattr(Incarnations, "_topic_id", lambda self, topic: "id-1")
    clicks = Clicks(kafka_cluster, sqlite_url)
    await clicks.handle()
    monkeypatch.setattr(Incarnations, "_topic_id", lambda self, topic: "id-2")
    kafka_cluster.delete_topic(clicks.topic)
    kafka_cluster.create_topic(clicks.topic)
    await clicks.write(5)
    finding = (await asked(clicks.app)).of("watermark-strayed")
    assert finding.what == f"{clicks.topic}[0]: the topic's id is id-2, and was id-1"
    await clicks.app.aclose()
