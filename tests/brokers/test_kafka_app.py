"""An app on Kafka (librdkafka's mock cluster)."""

import pytest

from tests.brokers.app_suite import AppSuite
from tests.brokers.kafka_bench import KafkaBench, kafka_cluster
from tests.brokers.suite import Bench
from tests.servers.kafka import Kafka as Cluster

__all__ = ["kafka_cluster"]
pytestmark = pytest.mark.xdist_group("kafka")


class TestKafkaApp(AppSuite):
    cluster: Cluster

    @pytest.fixture(autouse=True)
    def _cluster(self, kafka_cluster: Cluster) -> None:
        type(self).cluster = kafka_cluster

    def bench(self) -> Bench:
        return KafkaBench(self.cluster)
