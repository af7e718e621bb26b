"""An app on Kafka (librdkafka's mock cluster)."""

import asyncio
import os
import signal

import pytest
from confluent_kafka import Producer

from oncebox import Backoff, Retry
from oncebox.brokers.kafka import Kafka
from tests.brokers.app_suite import AppSuite
from tests.brokers.kafka_bench import MORTAL, KafkaBench, kafka_cluster, positions, send
from tests.brokers.suite import Bench
from tests.core.kit import Call, Shop, effect, event
from tests.crash.nursery import Child, Nursery
from tests.servers.kafka import Kafka as Cluster
from tests.waiting import eventually_async

__all__ = ["kafka_cluster"]
pytestmark = pytest.mark.xdist_group("kafka-app")


class TestKafkaApp(AppSuite):
    cluster: Cluster

    @pytest.fixture(autouse=True)
    def _cluster(self, kafka_cluster: Cluster) -> None:
        type(self).cluster = kafka_cluster

    def bench(self) -> Bench:
        return KafkaBench(self.cluster)


async def test_failing_message_goes_to_the_queue_and_its_partition_goes_on(
    kafka_cluster: Cluster, shop: Shop
) -> None:
    async with KafkaBench(kafka_cluster) as bench:
        billing = shop.consumer("billing", bench.make_source())

        @shop.handler(billing, "late")
        async def not_yet(call: Call) -> None:
            raise Retry("not yet", after=1000)

        shop.handler(billing, "paid")(effect)
        await bench.publish(event("a", type="late"), event("b"))
        async with shop.app.running():
            await eventually_async(lambda: shop.effects() == {"b": 1} and shop.count("queue") == 1, 30)
            async with asyncio.timeout(30):
                while await asyncio.to_thread(positions, kafka_cluster, bench.topic) != [2]:
                    pass
        assert len(shop.attempts("a")) == 1


async def test_message_that_kills_its_process_ends_dead(
    kafka_cluster: Cluster, shop: Shop, shop_database: str, nursery: Nursery
) -> None:
    topic = kafka_cluster.create_topic()
    producer = Producer({"bootstrap.servers": kafka_cluster.servers, "log_level": 0})
    send(producer, topic, event("good-1"), event("killer"), event("good-2"))
    words = {"servers": kafka_cluster.servers, "topic": topic, "url": shop_database}
    deaths: list[Child] = []
    # The first death is not counted: nothing tells a message apart that nobody had before.
    while len(deaths) < 5 and not shop.count("dead"):
        deaths.append(nursery.fork("tests.brokers.test_kafka_app:consume", **words))
        await eventually_async(lambda: deaths[-1].status is not None or shop.count("dead"), 30)
    try:
        await eventually_async(lambda: shop.effects() == {"good-1": 1, "good-2": 1}, 30)
    except AssertionError:
        print(shop.effects(), shop.dead(), *(f"{each.status}: {each.output}" for each in deaths), sep="\n")
        raise
    last = deaths.pop()
    last.kill()
    last.wait()
    [(identity, reason, *_)] = shop.dead()
    assert (identity, reason) == ("killer", "crash loop")
    assert 2 <= len(deaths) <= 4
    assert {child.status for child in deaths} == {-9}


def consume(servers: str, topic: str, url: str) -> None:
    """In a process of its own, which one of the messages kills."""

    async def serve() -> None:
        shop = Shop("psycopg-async", url, heartbeat_seconds=0.2, lapse_seconds=1.0)
        source = Kafka(servers, **MORTAL).topics(topic, group=f"group-of-{topic}")

        @shop.handler(shop.consumer("billing", source, crash_limit=2))
        async def handle(call: Call) -> None:
            if call.message.id == "killer":
                os.kill(os.getpid(), signal.SIGKILL)
            await effect(call)

        async with shop.app.running():
            await asyncio.Event().wait()

    asyncio.run(serve())


async def test_key_keeps_its_order_through_a_failure_while_others_go_on(
    kafka_cluster: Cluster, shop: Shop
) -> None:
    order: list[str] = []
    async with KafkaBench(kafka_cluster) as bench:
        patient = Backoff(attempts=1_000)

        @shop.handler(shop.consumer("billing", bench.make_source(), order_by="key", retry=patient))
        async def first_time_fails(call: Call) -> None:
            # However often it is tried before: the other key's are through first.
            if call.message.id == "a1" and (call.tx.attempt < 3 or "b2" not in order):
                raise Retry("not yet", after=0.2)
            await call.db.effect(call.message.id)
            order.append(call.message.id)

        names = ["a1", "a2", "b1", "a3", "b2"]
        await bench.publish(*(event(name, key=name[0]) for name in names))
        async with shop.app.running():
            await eventually_async(lambda: len(shop.effects()) == 5, 30)
    assert [name for name in order if name[0] == "a"] == ["a1", "a2", "a3"]
    assert [name for name in order if name[0] == "b"] == ["b1", "b2"]
    assert order.index("b2") < order.index("a1")
    assert set(shop.effects().values()) == {1}
