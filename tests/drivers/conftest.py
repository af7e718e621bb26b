"""Shops on SQLAlchemy, for every driver it is used over and both modes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.fixtures import _empty, mode, pytest_pyfunc_call, shop_database
from tests.drivers.orm import KINDS, OrmShop

__all__ = ["mode", "pytest_pyfunc_call", "shop_database"]


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def shop_url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    """Where this test's shop keeps its tables."""
    if KINDS[kind].engine == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    url: str = request.getfixturevalue("shop_database")
    _empty(url)
    return url


@pytest.fixture
def shop(kind: str, mode: str, shop_url: str) -> Iterator[OrmShop]:
    """An app on a sessionmaker, with nothing in any table."""
    shop = OrmShop(kind, shop_url, mode)
    yield shop
    if not shop.closed:
        asyncio.run(shop.close())
