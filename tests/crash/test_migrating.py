"""Migrations that are killed, refused or cut off at every step, and then run again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import msgspec
import psycopg
import pytest

from oncebox.drivers.database import Database
from oncebox.engines.migrations import latest
from oncebox.engines.queries import prefix
from oncebox.errors import OnceboxError
from oncebox.runtime.schema import migrate
from tests.crash.effects import reader
from tests.crash.faults import Fault, Steps, moments
from tests.crash.migrating import migrate_with
from tests.crash.nursery import Nursery


def applied(url: str, schema: str) -> list[int]:
    """The versions on record."""
    dialect = Database(url).dialect
    with closing(reader(url)) as connection:
        rows = connection.execute(f"SELECT version FROM {prefix(dialect, schema)}version ORDER BY version")
        return [row[0] for row in rows]


def version(url: str, schema: str) -> int:
    """How many versions are on record; none where there is no record."""
    try:
        return len(applied(url, schema))
    except (sqlite3.OperationalError, psycopg.errors.UndefinedTable):
        return 0


def test_migration_broken_at_any_step_is_completed_by_the_next(database_url: str, nursery: Nursery) -> None:
    """Each attempt goes on where the one before it was broken, and is broken one step later."""
    dry = Steps()
    migrate_with(database_url, "dry", dry)
    newest = latest(Database(database_url).dialect)
    stride, left_over = divmod(len(dry.kinds) - 1, newest)
    assert left_over == 0, "after a first look, every version takes the same steps"
    whats = ("kill", "error") if database_url.startswith("sqlite") else ("kill", "error", "cut")
    tried = 0
    for what in whats:
        for number, step in enumerate(dry.kinds, 1):
            for when in moments(what, step, is_last=number == len(dry.kinds)):
                done = version(database_url, what)
                fault = Fault(number - stride * done, when, what)
                break_with(database_url, what, fault, nursery)
                assert version(database_url, what) in (done, done + 1), fault
                tried += 1
        database = Database(database_url, schema=what)
        migrate(database)
        assert applied(database_url, what) == list(range(1, newest + 1)), what
        assert migrate(database) == []
    assert tried > 2 * len(dry.kinds) - 4


def break_with(url: str, schema: str, fault: Fault, nursery: Nursery) -> None:
    """Migrate, and see it end by this fault and by nothing else."""
    if fault.what == "kill":
        arguments = {"url": url, "schema": schema, "fault": msgspec.to_builtins(fault)}
        child = nursery.fork("tests.crash.migrating:in_child", **arguments)
        assert child.wait() == -9, f"{fault}: {child.output}"
        return
    steps = Steps(fault)
    with pytest.raises(OnceboxError) as caught:
        migrate_with(url, schema, steps)
    assert steps.happened, f"{fault}: {caught.value}"


def test_migrations_at_once_apply_each_version_once(database_url: str, nursery: Nursery) -> None:
    children = [
        nursery.fork("tests.crash.migrating:in_child", url=database_url, schema="many", fault=_never())
        for _ in range(4)
    ]
    assert [child.wait() for child in children] == [0] * 4, [child.output for child in children]
    assert applied(database_url, "many") == list(range(1, latest(Database(database_url).dialect) + 1))
    assert migrate(Database(database_url, schema="many")) == []


def _never() -> dict[str, Any]:
    return msgspec.to_builtins(Fault(10_000, "before", "kill"))  # type: ignore[no-any-return]
