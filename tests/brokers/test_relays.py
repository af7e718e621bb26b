"""The relay on real brokers: killed, and they restarted, it loses nothing and keeps order per key."""

from collections.abc import Iterator

import pytest

from oncebox.brokers.contract import Sink
from oncebox.brokers.kafka import Kafka
from oncebox.brokers.nats import Nats
from oncebox.brokers.rabbitmq import RabbitMQ
from tests.brokers.kafka_bench import QUICK, kafka_cluster
from tests.brokers.nats_bench import make_server
from tests.brokers.relays import RelayBroker, relaying, run_relays
from tests.crash.nursery import Nursery
from tests.servers import Postgres
from tests.servers.kafka import Kafka as Cluster
from tests.servers.nats import NatsServer
from tests.servers.rabbitmq import RabbitMQServer

__all__ = ["kafka_cluster"]
STREAM, SUBJECT = "RELAYED", "relayed.{type}"


def rabbit_sink(url: str, queue: str) -> Sink:
    return RabbitMQ(url).exchange("", routing_key=queue)


def nats_sink(url: str) -> Sink:
    return Nats(url).subject(SUBJECT, stream=STREAM, create=True)


def kafka_sink(servers: str, topic: str) -> Sink:
    return Kafka(servers, **QUICK).topic(topic)


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    """A server of this test's own, to restart."""
    with make_server() as server:
        yield server


@relaying
@pytest.mark.xdist_group("rabbitmq")
async def test_rabbitmq(rabbitmq: RabbitMQServer, postgres: Postgres, nursery: Nursery) -> None:
    queue = rabbitmq.new_name()
    source = RabbitMQ(rabbitmq.url).queue(queue, create=True, kind="quorum")
    words = {"url": rabbitmq.url, "queue": queue}
    broker = RelayBroker(source, f"{__name__}:rabbit_sink", words, rabbitmq.restart)
    await run_relays(broker, postgres, nursery)


@relaying
async def test_nats(nats: NatsServer, postgres: Postgres, nursery: Nursery) -> None:
    def restart() -> None:
        nats.kill9()
        nats.start()

    sink = nats_sink(nats.url)
    await sink.open()
    await sink.close()
    source = Nats(nats.url).stream(STREAM, consumer="counter", create=True, visibility_seconds=5)
    broker = RelayBroker(source, f"{__name__}:nats_sink", {"url": nats.url}, restart)
    await run_relays(broker, postgres, nursery)


@relaying
@pytest.mark.xdist_group("kafka")
async def test_kafka_on_the_mock_cluster(
    kafka_cluster: Cluster, postgres: Postgres, nursery: Nursery
) -> None:
    def restart() -> None:
        """It keeps everything in memory: it goes away and comes back, and forgets nothing."""
        kafka_cluster.go_down()
        kafka_cluster.come_up()

    topic = kafka_cluster.create_topic(partitions=4)
    source = Kafka(kafka_cluster.servers, **QUICK).topics(topic, group=f"group-of-{topic}")
    words = {"servers": kafka_cluster.servers, "topic": topic}
    broker = RelayBroker(source, f"{__name__}:kafka_sink", words, restart)
    await run_relays(broker, postgres, nursery)
