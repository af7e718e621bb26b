"""The schema: made once by however many at once, and a clear word when it is missing, old or too new."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from oncebox import App
from oncebox.drivers.database import Database
from oncebox.engines.migrations import latest, statements, versions
from oncebox.errors import ConfigError, SchemaError, SchemaMissing, SchemaOutdated
from oncebox.runtime.schema import check_schema, check_schema_async, migrate, migrate_async
from tests.core.kit import event

AT_ONCE = 8


def every(dialect: str) -> list[int]:
    return sorted(versions(dialect))


def rows(url: str, sql: str) -> list[tuple[Any, ...]]:
    """Ask, or change, without oncebox."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            return file.execute(sql).fetchall()
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return list(cursor.fetchall()) if cursor.description else []


def version_table(url: str) -> str:
    return "oncebox_version" if url.startswith("sqlite") else "oncebox.version"


def test_migrating_twice_changes_nothing_the_second_time(database_url: str) -> None:
    database = Database(database_url)
    assert migrate(database) == every(database.dialect)
    assert migrate(database) == []
    check_schema(database)


def test_eight_at_once_apply_every_version_once(database_url: str) -> None:
    barrier = threading.Barrier(AT_ONCE)

    def one() -> list[int]:
        database = Database(database_url)
        barrier.wait(20)
        return migrate(database)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        applied = [future.result() for future in [pool.submit(one) for _ in range(AT_ONCE)]]
    assert sorted(version for versions in applied for version in versions) == every(
        Database(database_url).dialect
    )


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+asyncpg"])
async def test_every_driver_migrates_and_checks(pg_url: str, scheme: str) -> None:
    database = Database(pg_url.replace("postgresql", scheme, 1))
    with pytest.raises(SchemaMissing, match="run: oncebox migrate"):
        await check_schema_async(database)
    assert await migrate_async(database) == every("postgresql")
    await check_schema_async(database)


@pytest.mark.parametrize("schema", ["oncebox", "shop_inbox"])
def test_missing_tables_name_the_command_to_run(pg_url: str, schema: str) -> None:
    with pytest.raises(SchemaMissing, match="run: oncebox migrate"):
        check_schema(Database(pg_url, schema=schema))


def test_missing_tables_are_told_to_whoever_processes(pg_url: str) -> None:
    app = App(pg_url)
    billing = app.consumer("billing")

    @billing.handler()
    def never(payload: dict[str, Any]) -> None:
        raise AssertionError

    with pytest.raises(SchemaMissing, match="oncebox migrate"):
        billing.process_sync(event())
    app.close()


def test_an_old_schema_names_both_versions_and_the_command(pg_url: str) -> None:
    database = Database(pg_url)
    migrate(database)
    rows(pg_url, "DELETE FROM oncebox.version WHERE version > 0")
    rows(pg_url, "INSERT INTO oncebox.version (version) VALUES (0)")
    with pytest.raises(
        SchemaOutdated, match=rf"version 0.*needs {latest('postgresql')}; run: oncebox migrate"
    ):
        check_schema(database)


def test_a_schema_newer_than_this_oncebox_is_refused(database_url: str) -> None:
    database = Database(database_url)
    migrate(database)
    applied = ", applied) VALUES (999, 0)" if database.dialect == "sqlite" else ") VALUES (999)"
    rows(database_url, f"INSERT INTO {version_table(database_url)} (version{applied}")
    with pytest.raises(SchemaOutdated, match="version 999, newer than this oncebox"):
        check_schema(database)


def test_two_schemas_in_one_database_do_not_meet(database_url: str) -> None:
    first, second = Database(database_url, schema="one"), Database(database_url, schema="two")
    assert migrate(first) == migrate(second) == every(first.dialect)
    for database in (first, second):
        app = App(database)
        billing = app.consumer("billing")
        billing.handler()(_fine)
        assert billing.process_sync(event()).status == "processed"
        app.close()


def _fine(payload: dict[str, Any]) -> None:
    """Nothing to do."""


def test_the_statements_for_other_migration_tools_make_the_same_schema(database_url: str) -> None:
    database = Database(database_url)
    if database.dialect == "sqlite":
        with closing(sqlite3.connect(database_url.removeprefix("sqlite:///"))) as file:
            for statement in statements("sqlite"):
                file.executescript(f"{statement};")
    else:
        for statement in statements("postgresql"):
            rows(database_url, statement)
    assert migrate(database) == []
    check_schema(database)


def test_statements_since_a_version_leave_out_what_is_there() -> None:
    for dialect in ("postgresql", "sqlite"):
        assert statements(dialect, since=latest(dialect)) == []
        assert len(statements(dialect, since=1)) < len(statements(dialect))


def test_a_role_that_does_not_wait_for_the_disk_is_refused(pg_url: str) -> None:
    migrate(Database(pg_url))
    name = pg_url.rsplit("/", 1)[1]
    rows(pg_url, f"ALTER DATABASE {name} SET synchronous_commit = off")
    with pytest.raises(ConfigError, match="synchronous_commit=off"):
        check_schema(Database(pg_url))


def test_schema_errors_are_one_kind() -> None:
    assert issubclass(SchemaMissing, SchemaError)
    assert issubclass(SchemaOutdated, SchemaError)


def test_the_latest_version_waits_for_nobody_who_has_only_the_fence(pg_url: str) -> None:
    """A stored worker has its fence before the ledger: a migration that locks both would wait for it in a circle."""
    *before, _, _ = statements("postgresql")
    for statement in before:
        rows(pg_url, statement)
    with psycopg.connect(pg_url) as worker:
        worker.execute("INSERT INTO oncebox.fence VALUES ('w', 1)")
        worker.execute("INSERT INTO oncebox.watermark VALUES ('c', 't', 0, 1, '', '')")
        with psycopg.connect(pg_url, autocommit=True) as server:
            server.execute("ALTER ROLE CURRENT_USER SET lock_timeout = '5s'")
        try:
            assert migrate(Database(pg_url)) == [latest("postgresql")]
        finally:
            with psycopg.connect(pg_url, autocommit=True) as server:
                server.execute("ALTER ROLE CURRENT_USER RESET lock_timeout")
        worker.execute("INSERT INTO oncebox.ledger VALUES ('c', '', 'm', '', '')")
