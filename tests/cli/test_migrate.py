"""`oncebox migrate` and `oncebox schema print`."""

import sqlite3
from pathlib import Path

import psycopg
import pytest

from oncebox.drivers.database import Database
from oncebox.schema import latest, migrate, statements
from tests.cli.kit import oncebox


def _dialect(url: str) -> str:
    return "sqlite" if url.startswith("sqlite") else "postgresql"


def _place(url: str) -> str:
    return Database(url).place


def test_migrating_applies_every_version_and_then_nothing(database_url: str, tmp_path: Path) -> None:
    versions = list(range(1, latest(_dialect(database_url)) + 1))
    first = oncebox("migrate", "--database", database_url, cwd=tmp_path)
    said = f"applied version {', '.join(map(str, versions))} to {_place(database_url)}\n"
    assert first == (0, said, "")
    again = oncebox("migrate", "--database", database_url, cwd=tmp_path)
    assert again == (0, f"up to date: {_place(database_url)} is at version {versions[-1]}\n", "")
    as_json = oncebox("migrate", "--database", database_url, "--json", cwd=tmp_path)
    assert as_json.json() == {"database": _place(database_url), "applied": [], "version": versions[-1]}


def test_migrating_through_asyncpg_and_into_another_schema(pg_url: str, tmp_path: Path) -> None:
    url = pg_url.replace("postgresql://", "postgresql+asyncpg://")
    done = oncebox("migrate", "--schema", "inbox", cwd=tmp_path, env={"ONCEBOX_DATABASE_URL": url})
    assert done.code == 0, done.err
    with psycopg.connect(pg_url) as connection:
        assert connection.execute("SELECT count(*) FROM inbox.ledger").fetchone() == (0,)
    status = oncebox("status", "--schema", "inbox", "--database", pg_url, cwd=tmp_path)
    assert status.code == 0, status.err


def test_the_schema_may_come_from_the_toml_file(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "oncebox.toml").write_text('schema = "inbox"\n')
    assert oncebox("migrate", "--database", sqlite_url, cwd=tmp_path).code == 0
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    assert connection.execute("SELECT count(*) FROM inbox_ledger").fetchone() == (0,)
    connection.close()


def test_the_database_may_come_from_an_app_or_a_file(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(f"from oncebox import App\napp = App({sqlite_url!r}, schema='shop')\n")
    (tmp_path / "url").write_text(f"{sqlite_url}\n")
    assert oncebox("migrate", "--app", "shop:app", cwd=tmp_path).out.startswith("applied")
    by_file = oncebox("status", "--database", "@url", "--schema", "shop", cwd=tmp_path)
    assert by_file.code == 0, by_file.err
    other = oncebox("migrate", "--app", "shop:app", "--schema", "inbox", cwd=tmp_path)
    message = "oncebox: --schema inbox differs from the app's own, shop; leave it out with --app\n"
    assert other == (2, "", message)


def test_the_database_option_wins_over_the_app(sqlite_url: str, tmp_path: Path) -> None:
    done = oncebox("migrate", "--database", sqlite_url, cwd=tmp_path, env={"ONCEBOX_APP": "nowhere:app"})
    assert done.out.startswith("applied")


def test_printed_sql_makes_the_same_tables(database_url: str, tmp_path: Path) -> None:
    printed = oncebox("schema", "print", "--dialect", _dialect(database_url), cwd=tmp_path)
    assert printed.code == 0, printed.err
    if database_url.startswith("sqlite"):
        connection = sqlite3.connect(database_url.removeprefix("sqlite:///"))
        connection.executescript(printed.out)
        connection.close()
    else:
        with psycopg.connect(database_url) as session:
            session.execute(printed.out.encode())
    assert oncebox("status", "--database", database_url, cwd=tmp_path).code == 0
    assert migrate(database_url) == []


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_sql_since_a_version(dialect: str, tmp_path: Path) -> None:
    words = ("schema", "print", "--dialect", dialect, "--schema", "inbox")
    whole = oncebox(*words, "--json", cwd=tmp_path).json()
    assert whole == {
        "dialect": dialect,
        "since": 0,
        "version": latest(dialect),
        "statements": statements(dialect, schema="inbox"),
    }
    nothing = oncebox(*words, "--since", str(latest(dialect)), cwd=tmp_path)
    assert nothing == (0, "", f"-- nothing to do since version {latest(dialect)}\n")
