"""An app per engine, with the tables of a small shop."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from oncebox import App
from oncebox.schema import migrate

TABLES = (
    "CREATE TABLE account (id text PRIMARY KEY, balance bigint NOT NULL)",
    "CREATE TABLE entry (payment text NOT NULL, n bigint NOT NULL)",
    "INSERT INTO account VALUES ('ada', 1000)",
)
Sql = Callable[..., list[tuple[Any, ...]]]


def run_sql(url: str, text: str, *values: object) -> list[tuple[Any, ...]]:
    """One statement, committed by itself; placeholders are written `?`."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as lite:
            return lite.execute(text, values).fetchall()
    with psycopg.connect(url.replace("+asyncpg", ""), autocommit=True) as server:
        cursor = server.execute(text.replace("?", "%s").encode(), values)
        return cursor.fetchall() if cursor.description is not None else []


def make_shop(url: str) -> None:
    migrate(url)
    for statement in TABLES:
        run_sql(url, statement)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Every shop is migrated before anything else."""
    name = "sqlite_url" if request.param == "sqlite" else "recycled_pg_url"
    url: str = request.getfixturevalue(name)
    return url


@pytest.fixture
def shop_url(database_url: str) -> str:
    """A database with the shop's tables, on each engine."""
    make_shop(database_url)
    return database_url


@pytest.fixture
def app(shop_url: str) -> Iterator[App]:
    app = App(shop_url)
    yield app
    app.close()


@pytest.fixture
def lite(sqlite_url: str) -> Iterator[App]:
    """The same on SQLite alone, where the engine makes no difference to what is shown."""
    make_shop(sqlite_url)
    app = App(sqlite_url)
    yield app
    app.close()


@pytest.fixture
def sql(shop_url: str) -> Sql:
    """Look at the shop, or change it, as a stranger."""
    return lambda text, *values: run_sql(shop_url, text, *values)
