"""The user's tables as a whole: read, remembered, put back."""

from __future__ import annotations

from importlib.util import find_spec

from oncebox.drivers.database import Database
from oncebox.errors import ConfigError
from oncebox.testing.tables.state import State, Table, Tables

__all__ = ["State", "Table", "Tables", "open_tables"]


def open_tables(database: Database) -> Tables:
    """The tables of an app's database; ConfigError when they can't be had."""
    if database.dialect == "sqlite":
        from oncebox.testing.tables.sqlite import SqliteTables

        return SqliteTables(database._target)
    if find_spec("psycopg") is None:
        raise ConfigError(
            "oncebox.testing copies tables through psycopg, whatever the app uses: pip install 'oncebox[postgres]'"
        )
    from oncebox.testing.tables.postgresql import PostgresTables

    return PostgresTables(database)
