"""The schema: applied by `migrate`, or as SQL text for people whose migrations are run by Alembic or Django.

`statements("postgresql", since=N)` gives what brings version N to the latest; put them into
`op.execute` or `RunSQL`, one by one.
"""

from __future__ import annotations

import asyncio

from oncebox.drivers.database import Database
from oncebox.engines.migrations import latest, statements
from oncebox.runtime import schema as _schema

__all__ = ["latest", "migrate", "statements"]


def migrate(database: str, *, schema: str = "oncebox") -> list[int]:
    """Bring the tables at this URL up to date, and return the versions applied; none when they were.

    What `oncebox migrate` does, for set-up code and test fixtures. Safe to run from many machines
    at once. ConfigError for a URL that can't be one, DatabaseUnavailable when nobody answers there.
    """
    found = Database(database, schema=schema)
    return _schema.migrate(found) if found.serves_sync else asyncio.run(_schema.migrate_async(found))
