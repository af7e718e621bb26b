"""Taking from a long outbox: by its order, without a sort, past what was published and is kept."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from oncebox.core.queries import Query
from oncebox.drivers.database import Database
from oncebox.engines.queries import load
from oncebox.runtime.schema import migrate

ROWS = 60_000
SLOTS = list(range(16))


def filled(number: str) -> str:
    """Most are published and kept; every hundredth waits."""
    return (
        "INSERT INTO {p}outbox "
        "(slot, id, source, type, key, payload, headers, content_type, state, attempts, created, due) "
        f"SELECT {number} % 32, {number}, 's', 'paid', 'k' || {number} % 1000, '', '', 'j', "
        f"CASE WHEN {number} % 100 = 0 THEN 0 ELSE 1 END, 0, {{now}}, {{now}} "
    )


@pytest.mark.parametrize("analyzed", [True, False])
def test_postgresql(pg_url: str, analyzed: bool) -> None:
    migrate(Database(pg_url))
    query: Query = load("postgresql").outbox_take
    params = {"slots": SLOTS, "away": [], "limit": 500}
    with closing(psycopg.connect(pg_url, autocommit=True)) as connection:
        text = filled("n").format(p="oncebox.", now="now()") + f"FROM generate_series(1, {ROWS}) n"
        connection.execute(text.encode())
        if analyzed:
            connection.execute("VACUUM ANALYZE oncebox.outbox")
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query.positional}"
        rows = connection.execute(explain.encode(), [params[name] for name in query.order]).fetchone()
        assert rows is not None
        plan = rows[0][0]["Plan"]
    assert plan["Actual Rows"] == ROWS // 100 / 2, "of the slots that are ours"
    assert "outbox_pending" in str(plan)
    if analyzed:
        assert "Sort" not in str(plan)
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert pages < 2 * ROWS // 100, f"{pages} pages for {ROWS // 100} rows that wait"


def test_sqlite(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    migrate(Database(f"sqlite:///{file}"))
    query = load("sqlite").outbox_take
    with closing(sqlite3.connect(file)) as connection:
        numbers = f"WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {ROWS}) SELECT n FROM c"
        connection.execute(filled("n").format(p="oncebox_", now="0") + f"FROM ({numbers})")
        connection.commit()
        params = {"slots": "[0, 1, 2]", "away": "[]", "limit": 500}
        plan = str(connection.execute(f"EXPLAIN QUERY PLAN {query.text}", params).fetchall())
    assert "oncebox_outbox_pending" in plan
    assert "ORDER BY" not in plan, plan
