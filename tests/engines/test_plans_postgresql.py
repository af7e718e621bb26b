"""Every hot query on large tables: by index, and touching few pages. Counted, not timed."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from oncebox.drivers.database import Database
from oncebox.runtime.schema import migrate
from tests.engines.plans import HOT, TYPES, Connection, explain, fill, fill_queue, run, unplaced
from tests.servers import Postgres

LARGE = {"ledger", "queue", "dead", "attempt", "result", "key"}
BATCH = {
    "claim_many",
    "guard_claim_many",
    "guard_lookup",
    "keep",
    "lookup",
    "store",
    "vouch",
    "take",
    "finish",
    "extend",
    "postpone",
    "suspect",
    "record_deaths",
    "key_touch",
    "key_lock",
    "key_backlog",
    "key_moved",
    "key_stale",
    "key_drop",
    "key_pass",
    "key_gaps",
}

REPLAY: dict[str, Any] = dict.fromkeys(("ids", "source", "type", "key", "since", "until"))
REPLAY |= {"consumer": "c1", "place": 0, "bound": 10**9, "limit": 500}

# One large database is enough for all xdist workers.
pytestmark = pytest.mark.xdist_group("plans")

PLANS = pytest.mark.parametrize("generic", [False, True], ids=["for these values", "for any values"])


@pytest.fixture(scope="module")
def large(postgres: Postgres) -> Iterator[Connection]:
    """A database with a large ledger and queue; what tests change in it is rolled back."""
    url = postgres.create_database()
    migrate(Database(url))
    with psycopg.connect(url, autocommit=True) as connection:
        fill(connection)
        yield connection
    postgres.drop_database(url)


def test_every_query_is_looked_at_here_or_said_to_be_looked_at_elsewhere() -> None:
    assert unplaced() == set()


@PLANS
@pytest.mark.parametrize("name", list(HOT))
def test_a_hot_query_goes_by_index_and_touches_few_pages(large: Connection, name: str, generic: bool) -> None:
    plan = explain(large, name, HOT[name], generic=generic)
    assert not plan.scans() & LARGE, plan.nodes
    # A row costs a walk down each index it is in and its page; a hundred of them, a hundred times that.
    assert plan.buffers <= (3_000 if name in BATCH else 60), plan


@PLANS
def test_types_nobody_handles_are_found_by_index(large: Connection, generic: bool) -> None:
    params = {"consumer": "c1", "types": ["paid", "sent", "report"], "age_seconds": 0.0, "limit": 100}
    plan = explain(large, "take_unknown", params, generic=generic)
    assert "queue" not in plan.scans()


@PLANS
def test_taking_passes_quickly_over_what_is_not_due_yet(large: Connection, generic: bool) -> None:
    with large.transaction(force_rollback=True):
        run(
            large,
            "UPDATE oncebox.queue SET due = statement_timestamp() + interval '1 hour' WHERE consumer = 'c1'",
        )
        run(large, "ANALYZE oncebox.queue")
        plan = explain(large, "due", TYPES, generic=generic)
        # Dead versions of the moved rows are still in the index; none of the waiting ones is visited.
        assert "queue" not in plan.scans()


def test_taking_a_hundred_of_a_million_costs_at_most_four_times_what_it_costs_of_ten_thousand(
    pg_url: str,
) -> None:
    migrate(Database(pg_url))
    with psycopg.connect(pg_url, autocommit=True) as connection:
        run(connection, "ALTER TABLE oncebox.queue SET UNLOGGED")
        few: dict[bool, int] = {}
        many: dict[bool, int] = {}
        for first, last, buffers in ((1, 10_000, few), (10_001, 1_000_000, many)):
            fill_queue(connection, first, last, "'c1'")
            run(connection, "ANALYZE oncebox.queue")
            for generic in (False, True):
                plan = explain(connection, "take", {**TYPES, "limit": 100}, generic=generic)
                assert not plan.scans()
                buffers[generic] = plan.buffers
    assert many[False] <= 4 * few[False]
    assert many[True] <= 4 * few[True]


@PLANS
def test_a_step_of_retention_reads_its_pages_and_probes_what_lies_beside(
    large: Connection, generic: bool
) -> None:
    windows = '[{"consumer": "c1", "seconds": -60}, {"consumer": "c2", "seconds": -60}]'
    params = {"windows": windows, "first": 1_000, "last": 1_064}
    plan = explain(large, "sweep_purge", params, generic=generic, ledger="ledger")
    assert ("Tid Range Scan", "ledger") in plan.nodes, plan.nodes
    assert not plan.scans() & {"ledger", "result", "attempt"}, plan.nodes


@PLANS
def test_a_page_of_a_replay_goes_by_index(large: Connection, generic: bool) -> None:
    with large.transaction(force_rollback=True):
        run(
            large,
            "INSERT INTO oncebox.kept (consumer, source, message_id, payload, headers, content_type, provenance) "
            "SELECT consumer, source, message_id, '', '', '', '{}' FROM oncebox.ledger WHERE consumer IN ('c1', 'c2')",
        )
        run(large, "ANALYZE oncebox.kept")
        plan = explain(large, "replay_page", REPLAY, generic=generic)
        assert not plan.scans() & {"kept", "ledger"}, plan.nodes
        assert plan.buffers <= 3_000, plan
