"""`oncebox migrate` and `oncebox schema print`: the tables, applied or as text."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated

import typer

from oncebox.cli.options import AppOption, DatabaseOption, DebugOption, JsonOption, SchemaOption
from oncebox.cli.output import print_json
from oncebox.cli.resolve import Target, find_target
from oncebox.errors import ConfigError
from oncebox.runtime.schema import migrate_async, verify_schema_async
from oncebox.schema import latest, statements


class Dialect(StrEnum):
    """Which SQL."""

    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"


def migrate_command(
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Create oncebox's tables, or bring them up to date.

    Safe to run from many machines at once, and to run again. SQLite apps do this by themselves when they
    start; PostgreSQL apps refuse to start until it was done.

    [bold]Examples[/]

      oncebox migrate --app shop:app
      oncebox migrate --database postgresql://localhost/shop
      ONCEBOX_DATABASE_URL=postgresql://localhost/shop oncebox migrate
    """
    target = find_target(database, app, schema)
    with target.named():
        applied = asyncio.run(_migrate(target))
    version = latest(target.database.dialect)
    if as_json:
        print_json({"database": target.database.place, "applied": applied, "version": version})
    elif applied:
        print(f"applied version {', '.join(map(str, applied))} to {target.database.place}")
    else:
        print(f"up to date: {target.database.place} is at version {version}")


async def _migrate(target: Target) -> list[int]:
    applied = await migrate_async(target.database)
    await verify_schema_async(target.database)
    return applied


def print_command(
    dialect: Annotated[Dialect, typer.Option("--dialect", help="Which SQL to print.")] = Dialect.POSTGRESQL,
    since: Annotated[
        int, typer.Option("--since", min=0, metavar="VERSION", help="Only what comes after this version.")
    ] = 0,
    schema: Annotated[
        str, typer.Option("--schema", metavar="NAME", help="Schema of the tables (SQLite: their prefix).")
    ] = "oncebox",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Print the tables' SQL, for those whose migrations are run by Alembic, Django or a person.

    The output can be piped into psql or sqlite3. In Python: oncebox.schema.statements("postgresql", since=1).

    [bold]Examples[/]

      oncebox schema print > oncebox.sql
      oncebox schema print --dialect sqlite | sqlite3 shop.db
      oncebox schema print --since 1 --schema inbox
    """
    version = latest(dialect)
    if since > version:
        raise ConfigError(f"--since {since}: the newest version of this oncebox is {version}")
    found = statements(dialect, since=since, schema=schema)
    if as_json:
        print_json({"dialect": dialect, "since": since, "version": version, "statements": found})
    elif found:
        print("\n\n".join(statement.rstrip().removesuffix(";") + ";" for statement in found))
    else:
        typer.echo(f"-- nothing to do since version {since}", err=True)
