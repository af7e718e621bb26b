"""The broker suite on a real Redis server."""

import pytest

from oncebox.brokers.redis import reader
from tests.brokers.redis_bench import RedisBench, redis_server
from tests.brokers.suite import Bench, BrokerSuite
from tests.servers.redis import RedisServer

__all__ = ["redis_server"]

pytestmark = pytest.mark.xdist_group("redis")


class TestRedis(BrokerSuite):
    @pytest.fixture(autouse=True)
    def _on(self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = redis_server
        # The suite waits for this often, at nobody's gain.
        monkeypatch.setattr(reader, "POLL_SECONDS", 0.05)

    def bench(self) -> Bench:
        return RedisBench(self.server)
