"""The broker suite on a real NATS server."""

from collections.abc import Iterator

import pytest

from tests.brokers.nats_bench import NatsBench
from tests.brokers.suite import Bench, BrokerSuite
from tests.conftest import missing
from tests.servers.nats import NatsServer
from tests.servers.process import Unavailable

pytestmark = pytest.mark.xdist_group("nats")

MAX_PAYLOAD = 12 * 1024 * 1024


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    try:
        server = NatsServer(max_payload=MAX_PAYLOAD)
    except Unavailable as error:
        missing(error)
    with server:
        yield server


class TestNats(BrokerSuite):
    @pytest.fixture(autouse=True)
    def _on(self, nats_server: NatsServer) -> None:
        self.server = nats_server

    def bench(self) -> Bench:
        return NatsBench(self.server)
