"""Migrations that are killed, refused or cut off at every step, and then run again."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import msgspec
import pytest

from oncebox.core.migrate import migrate as flow
from oncebox.core.run import run
from oncebox.core.steps import Step
from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings, database_steps
from oncebox.engines.migrations import latest, plan
from oncebox.engines.queries import prefix
from oncebox.errors import OnceboxError
from oncebox.runtime.schema import migrate
from tests.crash.effects import reader
from tests.crash.faults import Fault, Steps, moments, sever, spoil
from tests.crash.nursery import Nursery


def migrate_with(url: str, schema: str, steps: Steps) -> None:
    """Migrate on a connection of its own, with the fault of `steps` in the way."""
    database = Database(url, schema=schema)
    session = database.connect(Settings())
    table = database_steps(session)

    def perform(step: Step) -> Any:
        return table[type(step)](step)

    try:
        numbered = steps.numbered(perform, lambda step: sever(session), lambda: spoil(session))
        run(flow(plan(database.dialect, schema)), numbered)
    finally:
        session.close()


def in_child(url: str, schema: str, fault: dict[str, Any]) -> None:
    """In a process that is killed on the way."""
    migrate_with(url, schema, Steps(msgspec.convert(fault, Fault)))


def applied(url: str, schema: str) -> list[int]:
    """The versions on record."""
    dialect = Database(url).dialect
    with closing(reader(url)) as connection:
        rows = connection.execute(f"SELECT version FROM {prefix(dialect, schema)}version ORDER BY version")
        return [row[0] for row in rows]


def test_migration_broken_at_any_step_is_completed_by_the_next(database_url: str, nursery: Nursery) -> None:
    dry = Steps()
    migrate_with(database_url, "dry", dry)
    whats = ("kill", "error") if database_url.startswith("sqlite") else ("kill", "error", "cut")
    faults = [
        Fault(number, when, what)
        for number, step in enumerate(dry.kinds, 1)
        for what in whats
        for when in moments(what, step, is_last=number == len(dry.kinds))
    ]
    assert len(faults) > 2 * len(dry.kinds) - 4
    for number, fault in enumerate(faults):
        schema = f"s{number}"
        if fault.what == "kill":
            arguments = {"url": database_url, "schema": schema, "fault": msgspec.to_builtins(fault)}
            child = nursery.fork("tests.crash.test_migrating:in_child", **arguments)
            assert child.wait() == -9, f"{fault}: {child.output}"
        else:
            with pytest.raises(OnceboxError):
                migrate_with(database_url, schema, Steps(fault))
        database = Database(database_url, schema=schema)
        migrate(database)
        assert applied(database_url, schema) == list(range(1, latest(database.dialect) + 1)), fault
        assert migrate(database) == []


def test_migrations_at_once_apply_each_version_once(database_url: str, nursery: Nursery) -> None:
    children = [
        nursery.fork("tests.crash.test_migrating:in_child", url=database_url, schema="many", fault=_never())
        for _ in range(4)
    ]
    assert [child.wait() for child in children] == [0] * 4, [child.output for child in children]
    assert applied(database_url, "many") == list(range(1, latest(Database(database_url).dialect) + 1))
    assert migrate(Database(database_url, schema="many")) == []


def _never() -> dict[str, Any]:
    return msgspec.to_builtins(Fault(10_000, "before", "kill"))  # type: ignore[no-any-return]
