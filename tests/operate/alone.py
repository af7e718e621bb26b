"""After a kill: a server's session outlives its client for a moment, with its locks."""

from typing import Any

import psycopg

from tests.waiting import eventually

_OTHERS = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend'"
)


def wait_until_alone(connection: psycopg.Connection[Any]) -> None:
    """Return when this connection, in autocommit, is the only one to its database."""
    eventually(lambda: not connection.execute(_OTHERS).fetchall(), 60)
