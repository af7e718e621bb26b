"""A shop whose app has a sink that does as it is told."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.core.fixtures import mode, pytest_pyfunc_call, shop_database, shop_url
from tests.core.kit import Shop
from tests.guard.conftest import guard_pg_url, guard_postgres, guard_sqlite_path, rig, sqlite_template
from tests.outgoing.kit import ScriptedSink, put_slots_back

__all__ = [
    "guard_pg_url", "guard_postgres", "guard_sqlite_path", "mode", "pytest_pyfunc_call", "rig",
    "shop_database", "shop_url", "sqlite_template",
]  # fmt: skip


@pytest.fixture(params=["sqlite", "psycopg", "asyncpg"])
def kind(request: pytest.FixtureRequest) -> str:
    """One driver per way in: SQLite, blocking and awaiting PostgreSQL."""
    name: str = request.param
    return name


@pytest.fixture
def sink() -> ScriptedSink:
    """Takes everything, until it is told otherwise."""
    return ScriptedSink()


@pytest.fixture
def shop(kind: str, mode: str, shop_url: str, sink: ScriptedSink) -> Iterator[Shop]:
    """An app that publishes to `sink`, and nothing in any table."""
    shop = Shop(kind, shop_url, mode, sink=sink, source="shop")
    put_slots_back(shop)
    yield shop
    if not shop.closed:
        asyncio.run(shop.close())
