"""One database for many tests, each of which finds it as new: a fresh one costs twenty times as much."""

from types import TracebackType
from typing import LiteralString, Self

import psycopg
from psycopg import sql

from oncebox.schema import migrate
from tests.servers import Postgres

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'oncebox' AND tablename <> 'version'"
_ALONE: LiteralString = """
PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid();
"""
EMPTY: LiteralString = f"""
DO $$ DECLARE emptied record; BEGIN
    {_ALONE}
    FOR emptied IN SELECT schemaname, tablename FROM pg_tables
        WHERE schemaname IN ('oncebox', 'public') AND tablename <> 'version'
    LOOP EXECUTE format('DELETE FROM %I.%I', emptied.schemaname, emptied.tablename); END LOOP;
END $$
"""
"""End whoever is still connected, and delete the rows of every table."""
_DROP: LiteralString = f"""
DO $$ DECLARE dropped name; BEGIN
    {_ALONE}
    FOR dropped IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_|^information_schema$|^oncebox$'
    LOOP EXECUTE format('DROP SCHEMA %I CASCADE', dropped); END LOOP;
END $$
"""
_FILL = sql.SQL(
    "INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::{table}, {rows})"
)


class Errands:
    """What is done to a database between two tests, in one round trip, on a connection that is kept: opening
    one costs more than the errand."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: psycopg.Connection | None = None

    def run(self, text: LiteralString | sql.Composed) -> None:
        """Statements without parameters, committed."""
        if self._connection is not None:
            try:
                self._connection.execute(text)
                return
            except psycopg.OperationalError:
                # Tests may end every connection there is.
                self._connection.close()
        self._connection = psycopg.connect(self.url, autocommit=True, prepare_threshold=None)
        self._connection.execute(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()


class Recycled(Errands):
    """A PostgreSQL database with oncebox's tables, and in them what migrations leave there."""

    def __init__(self, server: Postgres) -> None:
        super().__init__(server.create_database())
        migrate(self.url)
        renewals: list[sql.Composable] = [sql.SQL(_DROP), sql.SQL("CREATE SCHEMA public")]
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
        self.run(self._renew)
