"""Versioned schema: which files there are, and what a database must be told to catch up."""

from __future__ import annotations

from importlib import resources

from oncebox.core.migrate import Plan
from oncebox.core.queries import Query
from oncebox.engines.queries import SQLITE_NOW, check_schema_name, prefix, render

DIALECTS = ("postgresql", "sqlite")


def versions(dialect: str) -> dict[int, str]:
    """Version number to raw SQL, in order."""
    if dialect not in DIALECTS:
        raise ValueError(f"dialect {dialect!r} is not one of {', '.join(DIALECTS)}")
    folder = resources.files("oncebox.engines") / "sql" / dialect
    files = sorted((file for file in folder.iterdir() if file.name[0].isdigit()), key=lambda file: file.name)
    return {int(file.name.split(".")[0].split("_")[0]): file.read_text() for file in files}


def latest(dialect: str) -> int:
    """The schema version this oncebox works with."""
    return max(versions(dialect))


def preamble(dialect: str, schema: str = "oncebox") -> list[str]:
    """What makes room for the version table; harmless when it is there already."""
    check_schema_name(schema)
    table = prefix(dialect, schema) + "version"
    if dialect == "postgresql":
        return [
            f'CREATE SCHEMA IF NOT EXISTS "{schema}"',
            (
                f"CREATE TABLE IF NOT EXISTS {table} "
                "(version integer PRIMARY KEY, applied timestamptz NOT NULL DEFAULT statement_timestamp())"
            ),
        ]
    return [f"CREATE TABLE IF NOT EXISTS {table} (version INTEGER PRIMARY KEY, applied INTEGER NOT NULL)"]


def record(dialect: str, version: int, schema: str = "oncebox") -> str:
    """The statement that notes a version as applied."""
    table = prefix(dialect, schema) + "version"
    if dialect == "postgresql":
        return f"INSERT INTO {table} (version) VALUES ({version})"
    return f"INSERT INTO {table} (version, applied) VALUES ({version}, {SQLITE_NOW})"


def statements(dialect: str, since: int = 0, schema: str = "oncebox") -> list[str]:
    """SQL that brings a schema from version `since` (0: nothing) to the latest, for Alembic or Django."""
    found = preamble(dialect, schema) if since == 0 else []
    for version, text in versions(dialect).items():
        if version > since:
            found += [render(text, dialect, schema).strip(), record(dialect, version, schema)]
    return found


def plan(dialect: str, schema: str = "oncebox") -> Plan:
    """Everything the migrating flow needs to know."""
    table = prefix(dialect, schema) + "version"
    lock = (
        f"SELECT pg_advisory_xact_lock(hashtext('oncebox.migrate.{schema}'))"
        if dialect == "postgresql"
        else ""
    )
    return Plan(
        lock=lock,
        preamble=tuple(preamble(dialect, schema)),
        current=Query("schema_versions", f"SELECT version FROM {table} ORDER BY version", False),
        session=(
            Query(
                "session",
                f"SELECT current_setting('synchronous_commit'), '{schema}' = ANY(current_schemas(false)), current_user",
                False,
            )
            if dialect == "postgresql"
            else None
        ),
        versions=tuple(
            (version, f"{render(text, dialect, schema)}\n;\n{record(dialect, version, schema)};\n")
            for version, text in versions(dialect).items()
        ),
    )
