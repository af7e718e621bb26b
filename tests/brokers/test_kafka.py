"""Kafka, on librdkafka's mock cluster: the suite, and what only a log with consumer groups does."""

import pytest

from oncebox.message import Message
from tests.brokers.kafka_bench import KafkaBench, kafka_cluster
from tests.brokers.suite import Bench, BrokerSuite, ids, received
from tests.servers.kafka import Kafka as Cluster

__all__ = ["kafka_cluster"]
pytestmark = pytest.mark.xdist_group("kafka")


class TestKafka(BrokerSuite):
    cluster: Cluster

    @pytest.fixture(autouse=True)
    def _cluster(self, kafka_cluster: Cluster) -> None:
        type(self).cluster = kafka_cluster

    def bench(self) -> Bench:
        return KafkaBench(self.cluster)

    async def test_lost_connection_gives_back_and_counts(self) -> None:
        async with self.bench() as bench:
            source, other = await bench.source(), await bench.source()
            await bench.publish(Message(id="a"))
            held = await received(source)
            await bench.lose(source)
            [again] = await received(other)
            assert ids([again]) == ["a"]
            assert again.redelivered
            await source.ack(held)
            await other.close()
            assert ids(await received(source)) == ["a"], "after a loss, receive joins again"
