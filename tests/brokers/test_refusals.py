"""A broker that refuses one message of a batch: that one is put off or parked with the reason, nothing else is."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncebox import Outbox
from oncebox.brokers.contract import Sink
from oncebox.brokers.kafka import Kafka
from oncebox.brokers.nats import Nats
from oncebox.brokers.rabbitmq import RabbitMQ
from oncebox.drivers.database import Database
from oncebox.policy import Backoff
from oncebox.runtime.relay import Bell, Relay, routes
from oncebox.runtime.schema import migrate
from tests.brokers.kafka_bench import QUICK, kafka_cluster
from tests.brokers.nats_bench import make_server
from tests.brokers.rabbitmq_bench import another_client
from tests.servers.kafka import Kafka as Cluster
from tests.servers.nats import NatsServer
from tests.servers.rabbitmq import RabbitMQServer

__all__ = ["kafka_cluster"]
TRIES = 3


async def relayed(folder: Path, sink: Sink, **bad: Any) -> tuple[int, str]:
    """Publish one message that can't be taken between others, of its key and of none; what is left of it."""
    url = f"sqlite:///{folder / 'shop.db'}"
    migrate(Database(url))
    outbox = Outbox("shop")
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        outbox.publish(connection, "fine", {}, id="a")
        outbox.publish(connection, **{"type": "fine", "payload": {}, "id": "bad", "key": "k", **bad})
        outbox.publish(connection, "fine", {}, id="b", key="k")
        outbox.publish(connection, "fine", {}, id="c")
        connection.commit()
        relay = Relay(Database(url), routes(sink), "r", Bell())
        relay.relaying.retry = Backoff(attempts=TRIES, base_seconds=0, max_seconds=0)
        await relay.open()
        try:
            await relay.turn()
            left = connection.execute("SELECT id FROM oncebox_outbox WHERE id IN ('a', 'c')").fetchall()
            assert left == [], "what needs nobody else is out at once"
            for _ in range(TRIES):
                await relay.turn()
        finally:
            await relay.close()
        ((id_, state, attempts, error),) = connection.execute(
            "SELECT id, state, attempts, error FROM oncebox_outbox"
        ).fetchall()
    assert (id_, state) == ("bad", 2), "parked, and the rest of its key is out"
    return attempts, error


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with make_server() as server:
        yield server


def nats_sink(server: NatsServer) -> Sink:
    return Nats(server.url).subject("refused.{type}", stream="REFUSED", create=True)


async def test_nats_a_payload_over_the_servers_limit(nats: NatsServer, tmp_path: Path) -> None:
    attempts, error = await relayed(tmp_path, nats_sink(nats), payload=b"x" * 2_000_000)
    assert (attempts, "message 'bad' is 2,000,155 bytes" in error) == (1, True), error


async def test_nats_a_subject_that_no_stream_takes(nats: NatsServer, tmp_path: Path) -> None:
    attempts, error = await relayed(tmp_path, nats_sink(nats), topic="nowhere.at.all")
    assert (attempts, "no stream takes subject 'nowhere.at.all'" in error) == (TRIES, True), error


@pytest.mark.xdist_group("kafka")
async def test_kafka_a_payload_over_the_limit(kafka_cluster: Cluster, tmp_path: Path) -> None:
    words = {**QUICK, "message.max.bytes": 1_000_000}
    sink = Kafka(kafka_cluster.servers, **words).topic(kafka_cluster.create_topic())
    attempts, error = await relayed(tmp_path, sink, payload=b"x" * 2_000_000)
    assert (attempts, "raise message.max.bytes here and at the topic, or send less" in error) == (1, True), (
        error
    )


@pytest.mark.xdist_group("rabbitmq")
async def test_rabbitmq_a_key_that_no_queue_is_bound_for(rabbitmq: RabbitMQServer, tmp_path: Path) -> None:
    exchange, queue = rabbitmq.new_name(), rabbitmq.new_name()
    with another_client(rabbitmq) as channel:
        channel.exchange_declare(exchange, "topic", durable=True, auto_delete=False)
        channel.queue_declare(queue, durable=True, auto_delete=False)
        channel.queue_bind(queue, exchange, "fine")
    attempts, error = await relayed(tmp_path, RabbitMQ(rabbitmq.url).exchange(exchange), type="unheard.of")
    text = f"exchange {exchange!r} has no queue for routing key 'unheard.of'; bind one"
    assert (attempts, text in error) == (TRIES, True), error
