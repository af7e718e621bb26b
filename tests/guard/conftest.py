"""Every kind of handle on a database of its own, with oncebox's tables and one table for effects."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from oncebox.drivers.sqlite import split
from oncebox.engines.migrations import statements
from oncebox.inbox import Inbox
from tests.guard import rigs_django, rigs_drivers, rigs_sqlalchemy
from tests.guard.rigs import Rig
from tests.recycled import Errands
from tests.servers import Postgres

RIGS = [*rigs_drivers.RIGS, *rigs_sqlalchemy.RIGS, *rigs_django.RIGS]
_EFFECT = "CREATE TABLE shop_effect (tag text)"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all tables, to be copied."""
    path = tmp_path_factory.mktemp("guard") / "template.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        for text in [*statements("sqlite"), _EFFECT]:
            for statement in split(text):
                connection.execute(statement)
        connection.commit()
    return path


@pytest.fixture(scope="session")
def guard_postgres(postgres: Postgres) -> Iterator[Errands]:
    """One PostgreSQL database with all tables, emptied between tests: making one takes longer than most."""
    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        # These tests commit thousands of times, and none of them is about power cuts.
        connection.execute(f"ALTER DATABASE {url.rsplit('/', 1)[1]} SET synchronous_commit = off".encode())
        for text in [*statements("postgresql"), _EFFECT]:
            connection.execute(text.encode())
    with Errands(url) as errands:
        yield errands


@pytest.fixture
def guard_pg_url(guard_postgres: Errands) -> Iterator[str]:
    yield guard_postgres.url
    # Nothing of the test may be left open, or this would wait for it.
    guard_postgres.run(
        "SET lock_timeout = '10s'; DELETE FROM shop_effect; DELETE FROM oncebox.ledger;"
        "DELETE FROM oncebox.result; DELETE FROM oncebox.queue; DELETE FROM oncebox.dead"
    )


@pytest.fixture
def guard_sqlite_path(sqlite_template: Path, tmp_path: Path) -> str:
    return str(shutil.copy(sqlite_template, tmp_path / "guard.db"))


@pytest.fixture(params=RIGS, ids=lambda rig: rig.name.replace(" ", "-"))
def rig(request: pytest.FixtureRequest) -> Rig:
    """Runs the test once per kind of handle."""
    kind: type[Rig] = request.param
    fixture = "guard_sqlite_path" if kind.engine == "sqlite" else "guard_pg_url"
    return kind(request.getfixturevalue(fixture))


@pytest.fixture
def inbox() -> Inbox:
    return Inbox("billing")
