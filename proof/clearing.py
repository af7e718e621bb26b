"""A database that many pieces use, one after another: each finds it as migrations left it."""

from __future__ import annotations

import sqlite3
from typing import Any


def growing(connection: Any) -> list[str]:
    """The tables in which nothing is before anything happens."""
    text = "SELECT 'oncebox.' || tablename FROM pg_tables WHERE schemaname = 'oncebox'"
    if isinstance(connection, sqlite3.Connection):
        text = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'oncebox_%'"
    names = [row[0] for row in connection.execute(text).fetchall()]
    empty = [name for name in names if not connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchall()]
    return ["effects", *empty]


def clear(connection: Any, names: list[str]) -> None:
    """Forget what was left there: nobody would meet it, but everybody would have to read past it."""
    if not isinstance(connection, sqlite3.Connection):
        connection.execute(f"TRUNCATE {', '.join(names)}")
        return
    for name in names:
        connection.execute(f"DELETE FROM {name}")
