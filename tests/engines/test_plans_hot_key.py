"""One key holds nine tenths of what waits: taking, and handing on the turn, cost about what they do otherwise."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oncebox.drivers.database import Database
from oncebox.engines.queries import load
from oncebox.runtime.schema import migrate
from tests.engines.plans import TYPES, Connection, explain, run

ROWS = 100_000
HOT = 90_000
KEYS = 10_000

pytestmark = pytest.mark.xdist_group("plans")

LANES = {"even": f"'k' || n % {KEYS}", "hot": f"CASE WHEN n <= {HOT} THEN 'k0' ELSE 'k' || n % {KEYS} END"}


def fill(connection: Connection, lane: str) -> None:
    """A backlog; the first of each key has the turn."""
    run(connection, "ALTER TABLE oncebox.queue SET UNLOGGED")
    run(
        connection,
        "INSERT INTO oncebox.queue (seq, consumer, source, message_id, type, fingerprint, payload, headers, "
        "content_type, provenance, lane, turn) SELECT n, 'c1', 's', 'm' || n, 'paid', '', '', '', '', '{}', lane, "
        "n = min(n) OVER (PARTITION BY lane) "
        f"FROM (SELECT n, {lane} AS lane FROM generate_series(1, {ROWS}) n) rows",
    )
    run(
        connection,
        "INSERT INTO oncebox.key (consumer, key) SELECT DISTINCT consumer, lane FROM oncebox.queue",
    )
    run(connection, "VACUUM ANALYZE")


def costs(url: str, lane: str) -> dict[str, int]:
    """Pages that a worker touches to take a hundred and, once they are done, to hand on their turns."""
    migrate(Database(url))
    keys = {"consumer": "c1", "keys": [f"k{n}" for n in range(100)]}
    found: dict[str, int] = {}
    with psycopg.connect(url, autocommit=True) as connection:
        fill(connection, lane)
        for generic in (False, True):
            taken = explain(connection, "take", {**TYPES, "limit": 100}, generic=generic)
            assert not taken.scans()
            found[f"take {generic}"] = taken.buffers
            with connection.transaction(force_rollback=True):
                run(
                    connection,
                    "DELETE FROM oncebox.queue WHERE turn AND lane IN (SELECT 'k' || generate_series(0, 99))",
                )
                for name in ("key_pass", "key_gaps"):
                    passed = explain(connection, name, keys, generic=generic)
                    assert not passed.scans() & {"queue"}, passed.nodes
                    found[f"{name} {generic}"] = passed.buffers
    return found


def test_postgresql_a_hot_key_costs_at_most_three_times_the_even_case(postgres: Any) -> None:
    even, hot = (costs(postgres.create_database(), LANES[name]) for name in ("even", "hot"))
    for step, pages in hot.items():
        assert pages <= 3 * even[step], (step, even, hot)


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("pick", "oncebox_queue_due"),
        ("key_pass", "oncebox_queue_turn"),
        ("key_gaps", "oncebox_queue_turn"),
        ("key_stale", "oncebox_queue_lane (consumer=? AND lane=? AND version<?)"),
        ("key_drop", "oncebox_queue_lane (consumer=? AND lane=? AND version<?)"),
    ],
)
def test_sqlite_goes_by_the_turn_and_not_through_the_backlog(tmp_path: Path, name: str, index: str) -> None:
    file = tmp_path / "shop.db"
    migrate(Database(f"sqlite:///{file}"))
    query = getattr(load("sqlite"), name)
    given = {
        "consumer": "c",
        "keys": "[]",
        "types": "[]",
        "except": "[]",
        "worker": "w",
        "slot": 1,
        "limit": 1,
    }
    with closing(sqlite3.connect(file)) as connection:
        params = {word: given.get(word) for word in query.names}
        rows = connection.execute(f"EXPLAIN QUERY PLAN {query.text}", params).fetchall()
    plan = [row[3] for row in rows]
    assert any(index in step for step in plan), plan
    assert not any(step.startswith("SCAN") and "queue" in step for step in plan), plan
    assert not any("lane>" in step for step in plan), plan
