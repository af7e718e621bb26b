"""A migration that is broken on the way: what the children of `test_migrating` run, without what a test needs."""

from __future__ import annotations

from typing import Any

import msgspec

from oncebox.core.migrate import migrate
from oncebox.core.run import run
from oncebox.core.steps import Step
from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings, database_steps
from oncebox.engines.migrations import plan
from oncebox.engines.queries import load
from tests.crash.faults import Fault, Steps, sever, spoil

for _dialect in ("sqlite", "postgresql"):
    load(_dialect, "kill")  # before the nursery forks: hundreds of children need it


def migrate_with(url: str, schema: str, steps: Steps) -> None:
    """Migrate on a connection of its own, with the fault of `steps` in the way."""
    database = Database(url, schema=schema)
    session = database.connect(Settings())
    table = database_steps(session)

    def perform(step: Step) -> Any:
        return table[type(step)](step)

    try:
        numbered = steps.numbered(perform, lambda step: sever(session), lambda: spoil(session))
        run(migrate(plan(database.dialect, schema)), numbered)
    finally:
        session.close()


def in_child(url: str, schema: str, fault: dict[str, Any]) -> None:
    """In a process that is killed on the way."""
    migrate_with(url, schema, Steps(msgspec.convert(fault, Fault)))
