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
_SCHEMAS = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_|^information_schema$|^oncebox$'"
_FILL = sql.SQL(
    "INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::{table}, {rows})"
)


class Recycled:
    """A PostgreSQL database with oncebox's tables, and in them what migrations leave there."""

    def __init__(self, server: Postgres) -> None:
        self.url = server.create_database()
        migrate(self.url)
        renewals: list[sql.Composable] = [sql.SQL("CREATE SCHEMA public")]
        with psycopg.connect(self.url, autocommit=True) as admin:
            for (name,) in admin.execute(_TABLES).fetchall():
                table = sql.Identifier("oncebox", name)
                renewals.append(sql.SQL("DELETE FROM {}").format(table))
                all_rows = sql.SQL("SELECT json_agg(t)::text FROM {} t").format(table)
                for (rows,) in admin.execute(all_rows).fetchall():
                    if rows is not None:
                        renewals.append(_FILL.format(table=table, rows=sql.Literal(rows)))
        self._renew = sql.SQL("; ").join(renewals)

    def clear(self) -> None:
        """End whoever is still connected, drop what tests have made, and renew the tables."""
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(_OTHERS)
            for (name,) in admin.execute(_SCHEMAS).fetchall():
                admin.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))
            admin.execute(self._renew)
