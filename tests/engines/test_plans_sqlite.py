"""Every hot query on SQLite: by index, never by reading a large table from end to end."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncebox.core.steps import Call
from oncebox.drivers.database import Database
from oncebox.drivers.sqlite import parameters
from oncebox.engines.queries import load
from oncebox.runtime.schema import migrate
from tests.engines.plans import HOT, SEQS, TYPES

ROWS = 20_000
LARGE = tuple(f"SCAN oncebox_{table}" for table in ("ledger", "queue", "dead", "attempt", "result"))
PICK = {**TYPES, "worker": "w", "slot": 1}
HOT_HERE: dict[str, dict[str, Any]] = {
    **{name: params for name, params in HOT.items() if getattr(load("sqlite"), name) is not None},
    "pick": {**PICK, "limit": 100},
    "pick_suspect": PICK,
    "taken": {"seqs": SEQS},
    "take_unknown": {"consumer": "c1", "types": ["paid"], "age_seconds": 0.0, "limit": 100},
}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path: Path = tmp_path_factory.mktemp("plans") / "large.db"
    migrate(Database(f"sqlite:///{path}"))
    connection = sqlite3.connect(path)
    connection.executescript(
        f"""
        CREATE TEMP TABLE n AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
        SELECT i FROM n;
        INSERT INTO oncebox_ledger (consumer, source, message_id, type, fingerprint, received)
        SELECT 'c' || i % 5, 's', 'm' || i, 'paid', x'00', 0 FROM n;
        INSERT INTO oncebox_queue (seq, consumer, source, message_id, type, fingerprint, payload, headers, content_type,
            provenance, received, due, deaths)
        SELECT i, 'c' || i % 5, 's', 'm' || i, 'paid', x'00', x'7b7d', x'90', '', '{{}}', 0, i, i % 1000 = 999 FROM n;
        INSERT INTO oncebox_attempt (consumer, source, message_id, n, at, error_type, error)
        SELECT 'c' || i % 5, 's', 'm' || i, 1, 0, 'E', 'no' FROM n;
        """
    )
    yield connection
    connection.close()


def details(connection: sqlite3.Connection, name: str) -> list[str]:
    """What SQLite says it would do, for each statement of the query."""
    query = getattr(load("sqlite"), name)
    call = Call(query, HOT_HERE[name])
    row = (HOT_HERE[name].get("rows") or [{}])[0]
    params = {"seq": 1, **parameters(call, row)}
    found = []
    for statement in query.statements:
        found += [str(line[3]) for line in connection.execute(f"EXPLAIN QUERY PLAN {statement}", params)]
    return found


@pytest.mark.parametrize("analysed", [False, True], ids=["as it comes", "after ANALYZE"])
@pytest.mark.parametrize("name", list(HOT_HERE))
def test_a_hot_query_goes_by_index(large: sqlite3.Connection, name: str, analysed: bool) -> None:
    large.execute("ANALYZE" if analysed else "SELECT 1")
    lines = details(large, name)
    for line in lines:
        assert not line.startswith(LARGE), lines
        # An aliased table is named by its alias.
        assert line not in ("SCAN l", "SCAN q", "SCAN d", "SCAN a", "SCAN r"), lines


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("due", "oncebox_queue_due"),
        ("due_suspect", "oncebox_queue_suspect"),
        ("pick", "oncebox_queue_due"),
        ("pick_suspect", "oncebox_queue_suspect"),
        ("take", "oncebox_queue_due"),
        ("take_suspect", "oncebox_queue_suspect"),
        ("take_unknown", "oncebox_queue_due"),
        ("lookup", "oncebox_ledger_key"),
    ],
)
def test_what_is_due_is_found_in_order_by_the_index_made_for_it(
    large: sqlite3.Connection, name: str, index: str
) -> None:
    lines = details(large, name)
    assert any(index in line for line in lines), lines
    assert not any("TEMP B-TREE FOR ORDER BY" in line for line in lines), lines
