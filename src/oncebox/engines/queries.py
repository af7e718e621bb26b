"""The SQL of one dialect, read from `sql/<dialect>/*.sql` and compiled once.

A file holds queries as `-- name: x`, then why, then the statement, with `:named` parameters.
`-- each: …` marks a query that is run once per row of its `rows` parameter (engines without
arrays); elsewhere `rows` becomes one array per column. A missing, extra or repeated name fails
here, at load, and the fields of `Queries` let the type checker see every use.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from functools import lru_cache
from importlib import resources
from typing import Any

from oncebox.core.queries import Queries, Query
from oncebox.errors import ConfigError

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
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


def render(text: str, dialect: str, schema: str) -> str:
    """SQL text with its placeholders filled in."""
    return text.format(p=prefix(dialect, schema), schema=f'"{schema}"', now=SQLITE_NOW)


@lru_cache(maxsize=16)
def load(dialect: str, schema: str = "oncebox") -> Queries:
    """The queries of a dialect for a schema; the same object for the same arguments."""
    found: dict[str, Query] = {}
    folder = resources.files("oncebox.engines") / "sql" / dialect
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name[0].isdigit() or not file.name.endswith(".sql"):
            continue
        parts = _NAME.split(file.read_text())
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise RuntimeError(f"query {name} is defined twice for {dialect}")
            comments = [line for line in body.splitlines() if line.startswith("--")]
            lines = [line for line in body.strip().splitlines() if not line.startswith("--")]
            text = render("\n".join(lines), dialect, schema)
            found[name] = Query(name, text, any(line.startswith("-- each:") for line in comments))
    missing = {field.name for field in fields(Queries) if field.default is MISSING} - found.keys()
    unknown = found.keys() - {field.name for field in fields(Queries)}
    if missing or unknown:
        raise RuntimeError(f"{dialect}: queries missing {missing}, unknown {unknown}")
    return Queries(**found)


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows as one list per column, for engines that take arrays."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
