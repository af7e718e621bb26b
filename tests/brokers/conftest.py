"""Fixtures of the brokers' tests: a shop whose way to its database can be cut, and forked processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncebox.brokers.rabbitmq import RabbitMQ
from tests.conftest import missing
from tests.core.fixtures import _empty, pytest_pyfunc_call, shop_database
from tests.core.kit import Shop
from tests.crash.conftest import nursery, warm_nursery
from tests.servers import Postgres, Proxy, Unavailable
from tests.servers.rabbitmq import RabbitMQServer, shared_node

__all__ = ["nursery", "pytest_pyfunc_call", "shop_database", "warm_nursery"]


@pytest.fixture
def database_way(postgres: Postgres, proxy_to: Callable[[int], Proxy]) -> Proxy:
    """Between the shop's app and its database; the observer does not pass here."""
    return proxy_to(postgres.port)


@pytest.fixture
def shop(shop_database: str, database_way: Proxy) -> Shop:
    """An app on PostgreSQL with an effects table, and nothing in any table."""
    _empty(shop_database)
    return Shop(
        "psycopg-async",
        database_way.through(shop_database),
        "inline",
        seen=shop_database,
        heartbeat_seconds=0.5,
        drain_seconds=15.0,
    )


@pytest.fixture(scope="session")
def rabbitmq() -> RabbitMQServer:
    """The session's node: tests that use it are in one xdist group, and may restart it."""
    try:
        return shared_node()
    except Unavailable as error:
        missing(error)


@pytest.fixture
def rabbit(rabbitmq: RabbitMQServer) -> RabbitMQ:
    return RabbitMQ(rabbitmq.url)


@pytest.fixture
def name(rabbitmq: RabbitMQServer) -> str:
    """Of a queue or exchange of RabbitMQ that no other test uses."""
    return rabbitmq.new_name()
