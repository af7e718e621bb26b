"""Databases that are not as they should be, each really so: the doctor names it."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from oncebox import App
from oncebox.brokers.memory import Memory
from oncebox.core.migrate import migrate as migrating
from oncebox.core.run import run
from oncebox.doctor import database as looked
from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings, database_steps
from oncebox.engines.migrations import plan
from oncebox.schema import migrate
from tests.cli.kit import oncebox
from tests.doctor.kit import ask, asked, faketime
from tests.waiting import eventually


@pytest.fixture
def pg(pg_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A migrated PostgreSQL database, and somebody who breaks it."""
    migrate(pg_url)
    with psycopg.connect(pg_url, autocommit=True) as connection:
        yield connection


def test_nothing_is_found_where_nothing_is_wrong(database_url: str) -> None:
    migrate(database_url)
    app = App(database_url)
    billing = app.consumer("billing", Memory().queue("payments"))

    @billing.handler("paid")
    async def paid(payment: dict[str, int]) -> None: ...

    assert ask(app) == []
    assert ask(database_url, patience_seconds=0.0) == []


def test_nor_by_way_of_an_engine(pg_url: str) -> None:
    migrate(pg_url)
    engine = create_engine(pg_url.replace("postgresql://", "postgresql+psycopg://"))
    assert ask(App(sessionmaker(engine))) == []
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_nor_by_way_of_an_async_engine(pg_url: str, driver: str) -> None:
    await asyncio.to_thread(migrate, pg_url)
    engine = create_async_engine(pg_url.replace("postgresql://", f"postgresql+{driver}://"))
    assert await asked(App(async_sessionmaker(engine))) == []
    await engine.dispose()


def test_a_database_that_can_not_be_reached() -> None:
    found = ask("postgresql://user:canary@127.0.0.1:1/shop")
    assert found.codes == {"database-unreachable"}
    assert "canary" not in str(found)


def test_an_engine_in_autocommit(pg_url: str) -> None:
    migrate(pg_url)
    engine = create_engine(
        pg_url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT"
    )
    found = ask(App(sessionmaker(engine)))
    assert "autocommit" in found.of("database-refused").what.lower()
    engine.dispose()


def test_a_server_that_is_too_old(
    pg: psycopg.Connection[Any], pg_url: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No such server runs here: what is looked for is raised above what does.
    monkeypatch.setattr(looked, "OLDEST_POSTGRESQL", 990_000)
    monkeypatch.setattr(looked, "OLDEST_SQLITE", (99, 0))
    migrate(sqlite_url)
    for url in (pg_url, sqlite_url):
        assert ask(url).codes == {"database-old"}


def test_a_database_without_tables(pg_url: str, sqlite_url: str) -> None:
    sqlite3.connect(sqlite_url.removeprefix("sqlite:///")).execute("CREATE TABLE mine (x)").connection.close()
    for url in (pg_url, sqlite_url):
        assert ask(url).codes == {"schema-missing"}


def test_tables_of_another_version(database_url: str) -> None:
    migrate(database_url)
    if database_url.startswith("sqlite"):
        with sqlite3.connect(database_url.removeprefix("sqlite:///")) as lite:
            lite.execute("INSERT INTO oncebox_version (version, applied) VALUES (99, 0)")
    else:
        with psycopg.connect(database_url) as session:
            session.execute("INSERT INTO oncebox.version (version) VALUES (99)")
    assert ask(database_url).codes == {"schema-outdated"}


def test_tables_that_an_older_release_has_made(database_url: str) -> None:
    database = Database(database_url)
    now = plan(database.dialect, database.schema)
    older = msgspec.structs.replace(now, versions=now.versions[:-1])
    session = database.connect(Settings())
    steps = database_steps(session)
    run(migrating(older), lambda step: steps[type(step)](step))
    session.close()
    found = ask(database_url)
    assert str(now.versions[-2][0]) in found.of("schema-outdated").what
    migrate(database_url)
    assert ask(database_url) == []


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        ("default_transaction_isolation", "serializable", "isolation"),
        ("default_transaction_read_only", "on", "read-only"),
        ("synchronous_commit", "off", "durability-off"),
        ("search_path", "oncebox, public", "search-path"),
    ],
)
def test_a_setting_that_does_harm(
    pg: psycopg.Connection[Any], pg_url: str, setting: str, value: str, code: str
) -> None:
    pg.execute(f"ALTER DATABASE {pg.info.dbname} SET {setting} = {value}".encode())
    assert ask(pg_url).codes == {code}


def test_a_role_without_rights(pg: psycopg.Connection[Any], pg_url: str) -> None:
    role = f"reader_{pg.info.dbname}"
    pg.execute(f"CREATE ROLE {role} LOGIN".encode())
    try:
        pg.execute(f"GRANT USAGE ON SCHEMA oncebox TO {role}".encode())
        pg.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA oncebox TO {role}".encode())
        pg.execute(f"GRANT INSERT, UPDATE, DELETE ON oncebox.ledger TO {role}".encode())
        found = ask(f"postgresql://{role}@127.0.0.1:{pg.info.port}/{pg.info.dbname}")
        assert found.codes == {"rights-missing"}
        assert {"table queue", "table dead"} <= {each.subject for each in found}
        assert "table ledger" not in {each.subject for each in found}
    finally:
        pg.execute(f"DROP OWNED BY {role}".encode())
        pg.execute(f"DROP ROLE {role}".encode())


def test_indexes_that_are_missing(pg: psycopg.Connection[Any], pg_url: str, sqlite_url: str) -> None:
    pg.execute("DROP INDEX oncebox.queue_due")
    pg.execute("ALTER TABLE oncebox.result DROP CONSTRAINT result_pkey")
    found = ask(pg_url)
    assert found.codes == {"index-missing"}
    assert [each.subject for each in found] == ["table queue", "table result"]
    migrate(sqlite_url)
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as lite:
        lite.execute("DROP INDEX oncebox_ledger_key")
    assert "oncebox_ledger_key" in ask(sqlite_url).of("index-missing").what


def test_an_index_that_is_not_valid(pg: psycopg.Connection[Any], pg_url: str) -> None:
    pg.execute(
        "INSERT INTO oncebox.tally SELECT now(), 'billing', 'type-' || n, 'processed', 1 FROM generate_series(1, 2) n"
    )
    with pytest.raises(psycopg.errors.UniqueViolation):
        pg.execute("CREATE UNIQUE INDEX CONCURRENTLY half_made ON oncebox.tally (consumer)")
    assert "half_made" in ask(pg_url).of("index-invalid").what


def test_a_trigger_that_does_not_fire(pg: psycopg.Connection[Any], pg_url: str) -> None:
    pg.execute("ALTER TABLE oncebox.ledger DISABLE TRIGGER refuse_early_commit")
    pg.execute("DROP TRIGGER refuse_early_commit ON oncebox.fence")
    found = ask(pg_url)
    assert found.codes == {"trigger-off"}
    assert sorted(each.what.rpartition(" ")[2] for each in found) == ["disabled", "missing"]


def test_dead_rows_that_nobody_cleans(pg: psycopg.Connection[Any], pg_url: str) -> None:
    pg.execute("ALTER TABLE oncebox.tally SET (autovacuum_enabled = off)")
    pg.execute(
        "INSERT INTO oncebox.tally SELECT now(), 'billing', 'type-' || n, 'processed', 1 "
        "FROM generate_series(1, 12000) n"
    )
    pg.execute("DELETE FROM oncebox.tally")
    if pg.info.server_version >= 150_000:
        pg.execute("SELECT pg_stat_force_next_flush()")
    eventually(lambda: ask(pg_url).codes == {"bloat", "autovacuum-off"}, 30)


def test_a_snapshot_that_is_held(pg: psycopg.Connection[Any], pg_url: str) -> None:
    with psycopg.connect(pg_url) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 1")
        found = ask(pg_url, patience_seconds=0.0).of("old-snapshot")
        assert str(reader.info.backend_pid) in found.what
        assert ask(pg_url) == [], "five minutes are nobody's trouble"


def test_clocks_that_differ(pg: psycopg.Connection[Any], pg_url: str, tmp_path: Path) -> None:
    fake = faketime("-2h")
    done = oncebox("doctor", "--database", pg_url, "--json", cwd=tmp_path, env={**os.environ, **fake})
    assert done.code == 1, done.err
    [found] = json.loads(done.out)["findings"]
    assert found["code"] == "clock-skew"
    assert "ahead of" in found["what"]
