"""The schema at start-up: applied for SQLite, which is ours alone; checked everywhere else."""

from __future__ import annotations

from typing import TypeVar

from oncebox import errors
from oncebox.core import migrate as flow
from oncebox.core.run import run, run_async
from oncebox.core.steps import Op
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings, database_steps
from oncebox.engines.migrations import plan
from oncebox.runtime.sessions import finished

T = TypeVar("T")


def migrate(database: Database) -> list[int]:
    """Apply what is missing; the versions applied."""
    return _with(database, flow.migrate(plan(database.dialect, database.schema)))


async def migrate_async(database: Database) -> list[int]:
    """The same under an event loop."""
    return await _with_async(database, flow.migrate(plan(database.dialect, database.schema)))


def check_schema(database: Database) -> None:
    """Raise SchemaMissing or SchemaOutdated with the command to run; SQLite is brought up to date."""
    if database.dialect == "sqlite":
        migrate(database)
    judge(database, _with(database, flow.inspect(plan(database.dialect, database.schema))))


async def check_schema_async(database: Database) -> None:
    """The same under an event loop."""
    if database.dialect == "sqlite":
        await migrate_async(database)
    found = flow.inspect(plan(database.dialect, database.schema))
    judge(database, await _with_async(database, found))


async def verify_schema_async(database: Database) -> None:
    """Compare the version only, and change nothing: for whoever reads, or has just migrated."""
    found = await _with_async(database, flow.inspect(plan(database.dialect, database.schema)))
    judge(database, flow.Found(found.version))


def judge(database: Database, found: flow.Found) -> None:
    """Compare with what this oncebox works with: its tables, commits that are on disk when they return,
    and names that mean what the user thinks."""
    if found.durability == "off":
        raise errors.ConfigError(
            "this role commits with synchronous_commit=off: an ack could outlive its effect; set it to on for the "
            'role or the database (durability="group" is the safe way not to wait for every commit)'
        )
    if found.exposed:
        raise errors.ConfigError(
            f"schema {database.schema!r} is on the search path of role {found.role!r} (a role of that name has it "
            "there by default), so a handler's unqualified table names could mean oncebox's tables; use another "
            "role, another search_path, or App(schema=…)"
        )
    wanted = plan(database.dialect, database.schema).versions[-1][0]
    if found.version < wanted:
        raise errors.SchemaOutdated(
            f"the oncebox tables are at version {found.version}, this oncebox needs {wanted}; run: oncebox migrate"
        )
    if found.version > wanted:
        raise errors.SchemaOutdated(
            f"the oncebox tables are at version {found.version}, newer than this oncebox ({wanted}); upgrade oncebox"
        )


def _with(database: Database, op: Op[T]) -> T:
    session = database.connect(Settings())
    try:
        table = database_steps(session)
        return run(op, lambda step: table[type(step)](step))
    finally:
        session.close()


async def _with_async(database: Database, op: Op[T]) -> T:
    session: Session = await database.connect_async(Settings())
    try:
        table = database_steps(session)
        return await run_async(op, lambda step: table[type(step)](step))
    finally:
        await finished(session.close())
