"""The suite's fixtures, and a table that keeps effects in the order they were made."""

import pytest

from tests.archive.buckets import bucket, s3
from tests.core.fixtures import mode, pytest_pyfunc_call, shop, shop_database, shop_url
from tests.core.kit import Shop

__all__ = ["bucket", "mode", "pytest_pyfunc_call", "s3", "shop", "shop_database", "shop_url"]


@pytest.fixture(params=["sqlite", "psycopg", "asyncpg"])
def kind(request: pytest.FixtureRequest) -> str:
    """One driver of each kind: what runs is the same flow."""
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def lines(request: pytest.FixtureRequest) -> None:
    if "shop" not in request.fixturenames:
        return
    shop: Shop = request.getfixturevalue("shop")
    number = (
        "INTEGER PRIMARY KEY AUTOINCREMENT"
        if shop.kind.engine == "sqlite"
        else "bigint GENERATED ALWAYS AS IDENTITY"
    )
    shop.rows(
        f"CREATE TABLE IF NOT EXISTS shop_line (n {number}, key TEXT NOT NULL, version INTEGER NOT NULL)"
    )
