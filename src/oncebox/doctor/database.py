"""What the database is like: its version, how it commits, whether the tables are whole, who holds it up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from oncebox import errors
from oncebox.core.migrate import inspect
from oncebox.core.steps import Call, Fetch, Op
from oncebox.doctor.findings import Finding, found
from oncebox.doctor.shape import expected
from oncebox.drivers.database import Database
from oncebox.engines.migrations import plan

OLDEST_POSTGRESQL = 140_000
OLDEST_SQLITE = (3, 38)
SKEW_SECONDS = 2.0
BLOAT_ROWS = 10_000
"""Fewer dead rows than these are nobody's trouble."""


def check_schema(database: Database) -> Op[list[Finding]]:
    """Whether the tables are there and of the right version, and what the role's sessions are like."""
    try:
        about = yield from inspect(plan(database.dialect, database.schema))
    except errors.SchemaMissing as error:
        return [found("schema-missing", "database", str(error))]
    findings = []
    wanted = plan(database.dialect, database.schema).versions[-1][0]
    if about.version != wanted:
        text = f"the tables are at version {about.version}, this oncebox works with {wanted}"
        findings.append(found("schema-outdated", "database", text))
    if about.durability == "off":
        findings.append(found("durability-off", "database", "this role commits with synchronous_commit=off"))
    if about.exposed:
        text = f"schema {database.schema!r} is on the search path of role {about.role!r}"
        findings.append(found("search-path", "database", text))
    return findings


def check_server(database: Database) -> Op[list[Finding]]:
    """What the server says of itself."""
    before = time.time()
    [row] = yield Fetch(Call(database.queries.doctor_server, {}))
    after = time.time()
    if database.dialect == "sqlite":
        version = tuple(int(part) for part in str(row[0]).split(".")[:2])
        return [found("database-old", "database", f"SQLite {row[0]}")] if version < OLDEST_SQLITE else []
    number, isolation, read_only, role, clock, _ = row
    findings = []
    if number < OLDEST_POSTGRESQL:
        findings.append(found("database-old", "database", f"PostgreSQL {number // 10_000}"))
    if isolation != "read committed":
        text = f"role {role!r} begins its transactions at isolation level {isolation!r}"
        findings.append(found("isolation", "database", text))
    if read_only:
        findings.append(found("read-only", "database", "this server, or this role's transactions, only read"))
    # The server looked at its clock some time between the two looks at ours.
    ahead = max(clock - after, before - clock)
    if ahead > SKEW_SECONDS:
        way = "ahead of" if clock > after else "behind"
        text = f"the database's clock is {ahead:,.0f} s {way} this machine's"
        findings.append(found("clock-skew", "database", text))
    return findings


def check_tables(database: Database, patience_seconds: float) -> Op[list[Finding]]:
    """Whether indexes and triggers are all there, and whether the tables are kept clean."""
    queries, shape = database.queries, expected(database.dialect, database.schema)
    indexes = yield Fetch(Call(queries.doctor_indexes, {}))
    findings = list(_indexes(indexes, shape.indexes))
    if queries.doctor_triggers is None or queries.doctor_tables is None or queries.doctor_snapshots is None:
        return findings
    primary = {row[0] for row in indexes if row[3]}
    findings += (
        found("index-missing", f"table {table}", f"table {table} has no primary key")
        for table in sorted(shape.tables - primary)
    )
    triggers = {(row[0], row[1]): row[2] for row in (yield Fetch(Call(queries.doctor_triggers, {})))}
    for table, name in sorted(shape.triggers):
        if not triggers.get((table, name), False):
            state = "disabled" if (table, name) in triggers else "missing"
            findings.append(found("trigger-off", f"table {table}", f"trigger {name} on {table} is {state}"))
    for row in (yield Fetch(Call(queries.doctor_tables, {}))):
        findings += _table(*row)
    held = yield Fetch(Call(queries.doctor_snapshots, {"seconds": patience_seconds}))
    for who, role, state, seconds in held:
        text = f"{who} (role {role}, {state}) has a transaction open for {seconds:,.0f} s"
        findings.append(found("old-snapshot", "database", text))
    return findings


def _indexes(rows: list[Any], wanted: frozenset[tuple[str, str]]) -> Iterator[Finding]:
    there = {(row[0], row[1]) for row in rows}
    for table, name in sorted(wanted - there):
        yield found("index-missing", f"table {table}", f"index {name} on {table} is missing")
    for table, name, valid, _ in rows:
        if not valid:
            yield found("index-invalid", f"table {table}", f"index {name} on {table} is not valid")


def _table(name: str, live: int, dead: int, unclean: bool, allowed: bool) -> Iterator[Finding]:
    subject = f"table {name}"
    if not allowed:
        yield found("rights-missing", subject, f"this role may not read and write table {name}")
    if unclean:
        yield found("autovacuum-off", subject, f"autovacuum does not look after table {name}")
    if dead > max(BLOAT_ROWS, 2 * live):
        text = f"table {name} has {dead:,} dead rows beside {live:,} live ones"
        yield found("bloat", subject, text)
