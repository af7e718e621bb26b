"""One migrated database for many tests, each of which finds it as new: a fresh one costs twenty times as much."""

import psycopg
from psycopg import sql

from oncebox.schema import migrate
from tests.servers import Postgres

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'oncebox' AND tablename <> 'version'"
_OTHERS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


class Recycled:
    """A PostgreSQL database with oncebox's tables, and in them what migrations leave there."""

    def __init__(self, server: Postgres) -> None:
        self.url = server.create_database()
        migrate(self.url)
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute("CREATE SCHEMA pristine")
            names = [name for (name,) in admin.execute(_TABLES).fetchall()]
            for name in names:
                copy = sql.SQL("CREATE TABLE {} AS SELECT * FROM {}")
                admin.execute(copy.format(_in("pristine", name), _in("oncebox", name)))
        renew = sql.SQL(
            "DELETE FROM {table}; INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM {copy}"
        )
        renewals = [renew.format(table=_in("oncebox", name), copy=_in("pristine", name)) for name in names]
        self._renew = sql.SQL("; ").join(
            [sql.SQL("DROP SCHEMA public CASCADE; CREATE SCHEMA public"), *renewals]
        )

    def clear(self) -> None:
        """End whoever is still connected, drop what tests have made, and renew the tables."""
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(_OTHERS)
            admin.execute(self._renew)


def _in(schema: str, name: str) -> sql.Identifier:
    return sql.Identifier(schema, name)
