"""The broker suite on a real NATS server."""

import pytest

from tests.brokers.nats_bench import NatsBench, nats_server
from tests.brokers.suite import Bench, BrokerSuite
from tests.servers.nats import NatsServer

__all__ = ["nats_server"]

pytestmark = pytest.mark.xdist_group("nats")


class TestNats(BrokerSuite):
    @pytest.fixture(autouse=True)
    def _on(self, nats_server: NatsServer) -> None:
        self.server = nats_server

    def bench(self) -> Bench:
        return NatsBench(self.server)
