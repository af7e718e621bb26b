"""What an operator asks stays cheap when the tables are large: no plan reads a whole large table."""

import re
import sqlite3

import psycopg

from oncebox.core.queries import Queries
from oncebox.core.steps import Call
from oncebox.drivers.sqlite import parameters
from oncebox.engines.postgresql import text
from oncebox.engines.queries import load
from oncebox.schema import migrate

ROWS = 50_000
UNFINISHED = ("status_unfinished", "unfinished_list", "unfinished_choose", "unfinished_count")
"""What reads no more of the ledger than its few unfinished rows."""
SCOPE = {"consumer": "c1", "source": "s1"}


def _calls(queries: Queries) -> dict[str, Call]:
    show = {"rows": [SCOPE], "message_id": "m7"}
    chosen = {
        "consumer": None, "source": None, "ids": None, "type": None, "older_seconds": None, "newer_seconds": None,
        "limit": 1000,
    }  # fmt: skip
    return {
        "status_unfinished": Call(queries.status_unfinished, {"cap": 1000}),
        "unfinished_list": Call(queries.unfinished_list, chosen),
        "unfinished_choose": Call(queries.unfinished_choose, chosen),
        "unfinished_count": Call(queries.unfinished_count, chosen),
        "unfinished_drop": Call(queries.unfinished_drop, {"rows": [{**SCOPE, "message_id": "m7"}]}),
        "unfinished_discard": Call(queries.unfinished_discard, {"rows": [{**SCOPE, "message_id": "m7"}]}),
        "status_queue": Call(queries.status_queue, {"consumers": ["c1"], "cap": 1000}),
        "status_workers": Call(queries.status_workers, {}),
        "show_scopes": Call(queries.show_scopes, {"consumer": None, "cap": 1000}),
        "show_ledger": Call(queries.show_ledger, show),
        "show_dead": Call(queries.show_dead, show),
        "show_attempts": Call(queries.show_attempts, show),
    }


def test_on_postgresql(pg_url: str) -> None:
    migrate(pg_url)
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO oncebox.ledger (consumer, source, message_id, type, fingerprint, seq) "
            "SELECT 'c' || n %% 5, 's' || n %% 2, 'm' || n, 't', '', n FROM generate_series(1, %s) n",
            (ROWS,),
        )
        connection.execute(
            "INSERT INTO oncebox.queue (seq, consumer, source, message_id, type, fingerprint, payload, headers, "
            "content_type, provenance) SELECT seq, consumer, source, message_id, type, '', '', '', '', '' "
            "FROM oncebox.ledger"
        )
        connection.execute(
            "INSERT INTO oncebox.dead (consumer, source, message_id, fingerprint, type, payload, headers, "
            "content_type, provenance, received, reason) SELECT consumer, source, message_id, '', type, '', '', "
            "'', '', now(), 'terminal' FROM oncebox.ledger"
        )
        connection.execute(
            "INSERT INTO oncebox.attempt (consumer, source, message_id, n, error_type, error) "
            "SELECT consumer, source, message_id, 1, 'E', 'e' FROM oncebox.ledger"
        )
        connection.execute("VACUUM ANALYZE")
        for name, call in _calls(load("postgresql")).items():
            plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {text(call)}".encode()))
            for table in ("ledger", "queue", "dead", "attempt"):
                assert f"Seq Scan on {table}" not in plan, f"{name}:\n{plan}"
            if name in UNFINISHED:
                ledgers = re.findall(r"(?:Scan|using \w+|Scan on \w+) on (?:ledger\b|ledger_\w+).*", plan)
                assert ledgers, plan
                assert all("ledger_unfinished" in line for line in ledgers), f"{name}:\n{plan}"


def test_on_sqlite(sqlite_url: str) -> None:
    migrate(sqlite_url)
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    connection.execute(
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?) "
        "INSERT INTO oncebox_ledger (consumer, source, message_id, type, fingerprint, received) "
        "SELECT 'c' || (n % 5), 's' || (n % 2), 'm' || n, 't', x'', 0 FROM n",
        (ROWS,),
    )
    connection.execute("ANALYZE")
    scopes = load("sqlite").show_scopes.text
    found = connection.execute(scopes, {"consumer": None, "cap": 1000}).fetchall()
    assert found == [(f"c{n}", f"s{m}") for n in range(5) for m in range(2)]
    found = connection.execute(scopes, {"consumer": "c3", "cap": 1000}).fetchall()
    assert found == [("c3", "s0"), ("c3", "s1")]
    for name, call in _calls(load("sqlite")).items():
        values = {**parameters(call), **(call.params["rows"][0] if "rows" in call.params else {})}
        rows = connection.execute(f"EXPLAIN QUERY PLAN {call.query.text}", values).fetchall()
        steps = [row[3] for row in rows]
        reads = [step for step in steps if re.match(r"\w+ (l|n|oncebox_ledger)\b", step)]
        # Reading the first row of an index in order is a scan to SQLite; a bare one reads the table.
        assert all("INDEX" in step or "PRIMARY KEY" in step for step in reads), f"{name}: {steps}"
        if name in UNFINISHED:
            assert reads, steps
            assert all("ledger_unfinished" in step for step in reads), f"{name}: {steps}"
    connection.close()
