"""The SQL of one dialect, read from `sql/<dialect>/*.sql` and compiled once.

A file holds queries as `-- name: x`, then why, then the statement, with `:named` parameters. What several of them
share stands once, as `-- part: x`, and is put where they say `{x}`; `[x]` is a table that is named when it is run.
`-- each: …` marks a query that is run once per row of its `rows` parameter (engines without arrays), and
`-- whole: …` one of them whose VALUES may be repeated instead; elsewhere `rows` becomes one array per column. A
missing, extra or repeated name fails here, at load, and the fields of `Queries` let the type checker see every use.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from functools import lru_cache
from importlib import resources
from typing import Any

from oncebox.core.queries import Queries, Query
from oncebox.errors import ConfigError

_NAME = re.compile(r"^-- (name|part): (\w+)$", re.MULTILINE)
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,40}")
SQLITE_NOW = "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"


def check_schema_name(schema: str) -> str:
    """The name itself, or ConfigError: it is spliced into SQL, and PostgreSQL cuts at 63 silently."""
    if not _IDENTIFIER.fullmatch(str(schema)):
        raise ConfigError(
            f"schema={schema!r}: use lower-case letters, digits and underscores, starting with a letter or "
            "underscore, at most 41 characters"
        )
    return schema


def prefix(dialect: str, schema: str) -> str:
    """What stands before a table's name: `"oncebox".` or `oncebox_`."""
    check_schema_name(schema)
    return f'"{schema}".' if dialect == "postgresql" else f"{schema}_"


def render(text: str, dialect: str, schema: str, parts: dict[str, str] | None = None) -> str:
    """SQL text with its placeholders filled in."""
    return text.format(p=prefix(dialect, schema), schema=f'"{schema}"', now=SQLITE_NOW, **(parts or {}))


@lru_cache(maxsize=16)
def load(dialect: str, schema: str = "oncebox") -> Queries:
    """The queries of a dialect for a schema; the same object for the same arguments."""
    bodies: dict[str, dict[str, list[str]]] = {"name": {}, "part": {}}
    folder = resources.files("oncebox.engines") / "sql" / dialect
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name[0].isdigit() or not file.name.endswith(".sql"):
            continue
        pieces = _NAME.split(file.read_text())
        for kind, name, body in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            if name in bodies[kind]:
                raise RuntimeError(f"query {name} is defined twice for {dialect}")
            bodies[kind][name] = body.strip().splitlines()
    parts = {name: render(_statement(lines), dialect, schema) for name, lines in bodies["part"].items()}
    found = {
        name: Query(
            name,
            render(_statement(lines), dialect, schema, parts),
            any(line.startswith(("-- each:", "-- whole:")) for line in lines),
            any(line.startswith("-- whole:") for line in lines),
        )
        for name, lines in bodies["name"].items()
    }
    missing = {field.name for field in fields(Queries) if field.default is MISSING} - found.keys()
    unknown = found.keys() - {field.name for field in fields(Queries)}
    if missing or unknown:
        raise RuntimeError(f"{dialect}: queries missing {missing}, unknown {unknown}")
    return Queries(**found)


def _statement(lines: list[str]) -> str:
    return "\n".join(line for line in lines if not line.startswith("--"))


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows as one list per column, for engines that take arrays. A column without any value is an empty list: next to
    the others unnest makes it NULL in every row, and nobody has to write or read it."""
    return {name: _column(name, rows) for name in rows[0]} if rows else {}


def _column(name: str, rows: list[dict[str, Any]]) -> list[Any]:
    values = [row[name] for row in rows]
    return [] if values[0] is None and values.count(None) == len(values) else values
