"""The broker suite on a real RabbitMQ, for both kinds of queue."""

import pytest

from oncebox.brokers.rabbitmq.topology import Kind
from tests.brokers.app_suite import AppSuite
from tests.brokers.chaos import SOAKING, chaos, run_chaos
from tests.brokers.rabbitmq_bench import RabbitBench, RabbitChaos
from tests.brokers.suite import Bench, BrokerSuite
from tests.crash.nursery import Nursery
from tests.servers import Postgres
from tests.servers.rabbitmq import RabbitMQServer

pytestmark = pytest.mark.xdist_group("rabbitmq")


class OnRabbitMQ:
    server: RabbitMQServer

    @pytest.fixture(autouse=True)
    def _on(self, rabbitmq: RabbitMQServer) -> None:
        self.server = rabbitmq


class TestQuorumQueue(OnRabbitMQ, BrokerSuite):
    def bench(self) -> Bench:
        return RabbitBench(self.server, "quorum")


class TestClassicQueue(OnRabbitMQ, BrokerSuite):
    def bench(self) -> Bench:
        return RabbitBench(self.server, "classic")


class TestAppOnQuorumQueue(OnRabbitMQ, AppSuite):
    def bench(self) -> Bench:
        return RabbitBench(self.server, "quorum")


@chaos
@pytest.mark.parametrize("kind", ["quorum", "classic"] if SOAKING else ["quorum"])
def test_chaos(rabbitmq: RabbitMQServer, disposable_postgres: Postgres, nursery: Nursery, kind: Kind) -> None:
    run_chaos(RabbitChaos(rabbitmq, kind), disposable_postgres, nursery)
