"""Fixtures of the behavioural suite: one shop per test, for every kind of driver and both modes."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.drivers import KINDS
from tests.core.kit import Shop
from tests.recycled import EMPTY, Errands
from tests.servers import Postgres


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """The engine and driver; narrow it with `on(...)`."""
    name: str = request.param
    return name


@pytest.fixture(params=["inline", "stored"])
def mode(request: pytest.FixtureRequest) -> str:
    """Narrow it with `inline` or `stored`."""
    name: str = request.param
    return name


def on(*kinds: str) -> pytest.MarkDecorator:
    """Only these kinds of driver."""
    return pytest.mark.parametrize("kind", kinds, indirect=True)


inline = pytest.mark.parametrize("mode", ["inline"], indirect=True)
stored = pytest.mark.parametrize("mode", ["stored"], indirect=True)
postgresql = on("psycopg", "psycopg-async", "asyncpg")
sqlite = on("sqlite", "sqlite-async")


@pytest.fixture(scope="session")
def shop_database(postgres: Postgres) -> Iterator[str]:
    """One PostgreSQL database for all shops; each finds it empty."""
    url = postgres.create_database()
    with Errands(url) as errands:
        _errands[url] = errands
        yield url


@pytest.fixture
def shop_url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    """Where this test's shop keeps its tables."""
    if KINDS[kind].engine == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    url: str = request.getfixturevalue("shop_database")
    _empty(url)
    return url


@pytest.fixture
def shop(kind: str, mode: str, shop_url: str) -> Iterator[Shop]:
    """An app with an effects table, and nothing in any table."""
    shop = Shop(kind, shop_url, mode)
    yield shop
    if not shop.closed:
        asyncio.run(shop.close())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Close a test's shop on the test's own loop, where its connections live."""
    shop = pyfuncitem.funcargs.get("shop")
    function = pyfuncitem.obj
    if not isinstance(shop, Shop) or not inspect.iscoroutinefunction(function):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def test() -> None:
        try:
            await function(**arguments)
        finally:
            await shop.close()

    asyncio.run(test())
    return True


_errands: dict[str, Errands] = {}


def _empty(url: str) -> None:
    """Delete, not drop: a fresh database costs fifty times as much. Whoever is left over is ended first."""
    _errands[url].run(EMPTY)
