"""Through SQLAlchemy every statement has parameters, never literals: PostgreSQL must find their types."""

from dataclasses import fields

import psycopg
import pytest

from oncebox.core.queries import Queries, Query
from oncebox.engines.queries import load
from oncebox.schema import migrate


@pytest.fixture
def connection(pg_url: str) -> psycopg.Connection:
    migrate(pg_url)
    return psycopg.connect(pg_url, autocommit=True)


def test_every_parameter_has_a_type_of_its_own(connection: psycopg.Connection) -> None:
    queries = load("postgresql")
    failed = {}
    with connection:
        for field in fields(Queries):
            query: Query | None = getattr(queries, field.name)
            if query is None or not query.names or query.is_script:
                continue
            query = query.of(ledger="ledger")
            try:
                connection.execute(f"PREPARE q AS {query.numbered}".encode())
                connection.execute("DEALLOCATE q")
            except psycopg.Error as error:
                failed[field.name] = str(error).splitlines()[0]
    assert not failed
