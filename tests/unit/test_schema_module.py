"""`oncebox.schema.migrate`: what set-up code and fixtures call, on every engine and driver."""

import sqlite3
from contextlib import closing

import psycopg
import pytest

from oncebox import schema
from oncebox.errors import ConfigError


def test_migrate_applies_what_is_missing_and_then_nothing(database_url: str) -> None:
    dialect = database_url.split(":", 1)[0]
    assert schema.migrate(database_url) == list(range(1, schema.latest(dialect) + 1))
    assert schema.migrate(database_url) == []


def test_migrate_takes_an_asyncpg_url(pg_url: str) -> None:
    assert schema.migrate(pg_url.replace("postgresql://", "postgresql+asyncpg://"))
    assert schema.migrate(pg_url) == []


def test_migrate_puts_the_tables_under_the_name_given(sqlite_url: str, pg_url: str) -> None:
    schema.migrate(sqlite_url, schema="inbox")
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        assert connection.execute("SELECT count(*) FROM inbox_ledger").fetchone() == (0,)
    schema.migrate(pg_url, schema="inbox")
    with psycopg.connect(pg_url) as server:
        assert server.execute("SELECT count(*) FROM inbox.ledger").fetchone() == (0,)


def test_migrate_says_what_a_database_url_looks_like() -> None:
    with pytest.raises(ConfigError, match="sqlite:///"):
        schema.migrate("shop.db")
