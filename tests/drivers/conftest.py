"""Shops on SQLAlchemy, for every driver it is used over and both modes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.core.fixtures import mode, pytest_pyfunc_call, shop_database
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
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        tables = admin.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables "
            "WHERE schemaname IN ('public', 'oncebox') AND tablename <> 'version'"
        ).fetchall()
        for (table,) in tables:
            admin.execute(f"DELETE FROM {table}".encode())
    return url


@pytest.fixture
def shop(kind: str, mode: str, shop_url: str) -> Iterator[OrmShop]:
    """An app on a sessionmaker, with nothing in any table."""
    shop = OrmShop(kind, shop_url, mode)
    yield shop
    if not shop.closed:
        asyncio.run(shop.close())
