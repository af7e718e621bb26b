"""Large tables, and how queries fare on them."""

import json
from dataclasses import fields
from typing import Any, NamedTuple

import psycopg

from oncebox.core.queries import Queries
from oncebox.core.steps import Call
from oncebox.engines import postgresql
from oncebox.engines.queries import load

Connection = psycopg.Connection[Any]

LEDGER_ROWS = 200_000
QUEUE_ROWS = 100_000

ONE = {"consumer": "c1", "source": "s", "message_id": "m100006"}
"""A key in the ledger of which nothing waits."""
SEQS = list(range(1, 501, 5))
"""A hundred rows of the queue, all of consumer c1."""
TYPES: dict[str, Any] = {"consumer": "c1", "types": ["paid", "sent"], "except": ["report"]}
ERROR = {"error_type": "E", "error": "no", "traceback": ""}
CONTENT = {"payload": b"{}", "headers": b"\x90", "content_type": "application/json", "provenance": "{}"}


def key_rows(start: int, **more: Any) -> list[dict[str, Any]]:
    """A hundred keys of one consumer."""
    return [{"source": "s", "message_id": f"m{n}", **more} for n in range(start, start + 500, 5)]


MARK = {"type": "paid", "fingerprint": b"f"}
PLACE: dict[str, Any] = {"lane": "k1", "version": 7}
LANES: dict[str, Any] = {"consumer": "c1", "keys": [f"k{n}" for n in range(100)]}
HOT: dict[str, dict[str, Any]] = {
    "claim": {**ONE, **MARK, "state": 0, "lazy": False, "token": "t"},
    "claim_many": {"consumer": "c1", "rows": key_rows(1, **MARK)},
    "unclaim": ONE,
    "mark_unfinished": ONE,
    "mark_finished": ONE,
    "set_state": {**ONE, "state": 2},
    "guard_claim": {**ONE, **MARK, "token": "t", "serial": "1"},
    "guard_open": {**ONE, **MARK, "name": "app oncebox:t.1", "mark": "t.1"},
    "guard_claim_many": {"consumer": "c1", "rows": key_rows(1, **MARK), "token": "t", "serial": "1"},
    "guard_lookup": {"consumer": "c1", "rows": key_rows(1)},
    "lookup": {"consumer": "c1", "rows": key_rows(1)},
    "lookup_one": {"consumer": "c1", **key_rows(1)[0]},
    "hold": {**ONE, "fingerprint": b"f", "state": 1},
    "keep_result": {**ONE, "body": b"1"},
    "keep": {"consumer": "c1", "rows": key_rows(1, key=None, **CONTENT)},
    "store": {"consumer": "c1", "rows": key_rows(900_001, **MARK, **PLACE, key=None, **CONTENT)},
    "vouch": {"rows": key_rows(1, consumer="c1")},
    "due": TYPES,
    "due_suspect": TYPES,
    "take": {**TYPES, "limit": 100},
    "take_suspect": TYPES,
    "finish": {"seqs": SEQS},
    "lease": {"seq": 1, "token": "t", "seconds": 60.0, "deaths": 0},
    "extend": {"seqs": SEQS, "tokens": ["t"] * len(SEQS), "seconds": 60.0},
    "finish_leased": {"seq": 1, "token": "t"},
    "still_leased": {"seq": 1, "token": "t"},
    "give_up": {"seq": 1, "token": "t"},
    "postpone": {"seqs": SEQS, "seconds": 1.0},
    "charge": {"seq": 1, "seconds": 1.0},
    "record_attempt": {**ONE, **ERROR, "died": False, "worker": "w"},
    "count_attempts": ONE,
    "bury": {
        **ONE,
        **MARK,
        **PLACE,
        **CONTENT,
        **ERROR,
        "key": None,
        "reason": "terminal",
        "attempts": 1,
        "kept": True,
    },
    "bury_queued": {**ERROR, "seq": 1, "reason": "terminal", "charged": 1},
    "suspect": {"seqs": SEQS},
    "record_deaths": {"seqs": SEQS, "worker": "w"},
    "key_touch": {**LANES, "last": 0},
    "key_lock": LANES,
    "key_backlog": LANES,
    "key_start": {"consumer": "c1", "key": "k1", "last": 0},
    "key_moved": {"consumer": "c1", "rows": [{"key": f"k{n}", "version": 1} for n in range(100)]},
    "key_block": {**ONE, "key": "k1"},
    "key_unblock": {"consumer": "c1", "key": "k1"},
    "key_redriven": {**ONE, "key": "k1", "version": 3},
    "key_stale": LANES,
    "key_drop": LANES,
    "key_pass": LANES,
    "key_gaps": LANES,
    "key_overdue": {"consumer": "c1", "seconds": 60.0, "limit": 100},
    "key_waiting": {"consumer": "c1", "key": "k1", "limit": 100},
    "key_skip": {"consumer": "c1", "key": "k1", "keep": True},
    "key_reset": {"consumer": "c1", "key": "k1", "last": 3},
    "spill": {**ONE, "attempts": 1, "turn": True, "seconds": 1.0},
}
"""Every query that is run per message or per batch, with what it is run with."""

ELSEWHERE = {
    "take_unknown_suspect",  # the same for the few suspects
    "take_unknown",  # walks one consumer's backlog, in bounded steps; has a test of its own
    "heartbeat", "is_alive", "mark", "mark_inline", "withdraw", "lapsed", "reap", "reap_hands", "orphans", "retire",
    "retire_hands", "fence",  # tables of a row per worker
    "finished",  # touches no table
    "guard_call",  # a procedure, with guard_open's insert in it
    "tally",  # a row per minute and type
    "status_queue", "status_dead", "status_tally", "status_workers",  # asked by people; capped
    "show_scopes", "show_ledger", "show_dead", "show_attempts",
    "effects_count", "effect_find", "effect_late", "exhume", "queued", "unbury",  # by people, one at a time
    "publish", "send_clash", "ring", "relay_join", "relay_leave", "slots_held", "slots_lease", "slots_free",  # outgoing
    "outbox_take", "outbox_flush", "outbox_drop", "outbox_keep", "outbox_fail", "outbox_park", "outbox_sweep",
    "outbox_status", "effect_start", "effect_look", "effect_settle", "effect_resolve", "effects_open",
    "outbox_parked", "outbox_parked_count", "outbox_retry", "outbox_discard", "audit",  # by people
    "watermark_move", "watermark_look", "watermark_begin", "watermark_set",  # a table of a row per partition
    "watermark_list", "watermark_forget",  # by people
    "keys_stuck", "keys_count", "place_of", "dead_list", "dead_choose", "dead_count", "dead_row",  # by people
    "dead_reopen", "dead_requeue", "dead_discard", "dead_drop",
    "status_unfinished", "unfinished_list", "unfinished_choose", "unfinished_count", "unfinished_drop",  # tests/cli
    "unfinished_discard",
    "sweep_lease", "sweep_move", "sweep_free", "sweep_end", "sweep_keys", "sweep_keys_drop", "sweep_tally",
    "low_note", "low_drop",
    "sweep_results", "sweep_attempts", "sweep_effects", "sweep_kept", "sweep_drop",  # test_plans of the sweep
    "sweep_find", "sweep_look", "sweep_purge", "leaves", "partition_held", "partition_told", "partition_count",
    "partition_spent", "partition_lock", "partition_empty", "partition_clear", "partition_retire",
    "partition_make",  # a partition at a time
    "partition_lock_all", "partition_whole", "partition_parent", "partition_join", "partition_undo", "partition_rows",
    "archive_sizes", "archive_extras", "forget", "forgotten",
    "archive_known", "archive_restore", "archive_restore_results", "archive_restore_kept",  # by people
    "replay_quiet", "replay_bound", "replay_begin", "replay_open", "replay_hold", "replay_move", "replay_end",
    "replay_page", "replay_known", "replay_changes", "replay_watch", "replay_counts",

    "status_types", "status_known", "show_lane", "audit_list",  # by people
    "doctor_server", "doctor_indexes", "doctor_triggers", "doctor_tables", "doctor_snapshots", "doctor_leases",
    "doctor_sweep",  # by people, now and then
    "pick", "pick_suspect", "taken",  # SQLite's
}  # fmt: skip
"""Queries that are not run per message, or are looked at somewhere else."""


def unplaced() -> set[str]:
    """Queries that nobody has decided about."""
    return {field.name for field in fields(Queries)} - HOT.keys() - ELSEWHERE


def fill(connection: Connection) -> None:
    """Five consumers; each tenth of the queue waits for later, each thousandth is a suspect."""
    for table in ("ledger", "queue", "dead", "attempt", "result"):
        run(connection, f"ALTER TABLE oncebox.{table} SET UNLOGGED")
    run(connection, "ALTER TABLE oncebox.ledger DISABLE TRIGGER ALL")
    run(
        connection,
        "INSERT INTO oncebox.ledger (consumer, source, message_id, type, fingerprint, seq, finished) "
        "SELECT 'c' || n % 5, 's', 'm' || n, 'paid', decode(md5(n::text), 'hex'), "
        f"CASE WHEN n <= {QUEUE_ROWS} THEN n END, statement_timestamp() FROM generate_series(1, {LEDGER_ROWS}) n",
    )
    fill_queue(connection, 1, QUEUE_ROWS)
    run(
        connection,
        "INSERT INTO oncebox.dead (consumer, source, message_id, fingerprint, type, payload, headers, content_type, "
        "provenance, received, reason) SELECT 'c' || n % 5, 's', 'm' || n, decode(md5(n::text), 'hex'), 'paid', '', "
        "'', '', '{}', statement_timestamp(), 'terminal' FROM generate_series(150001, 170000) n",
    )
    run(
        connection,
        "INSERT INTO oncebox.attempt (consumer, source, message_id, n, error_type, error) "
        "SELECT 'c' || n % 5, 's', 'm' || n, 1, 'E', 'no' FROM generate_series(150001, 170000) n",
    )
    run(
        connection,
        "INSERT INTO oncebox.result (consumer, source, message_id, body) "
        "SELECT 'c' || n % 5, 's', 'm' || n, '1' FROM generate_series(100001, 120000) n",
    )
    fill_lanes(connection)
    run(connection, "VACUUM ANALYZE")


def fill_lanes(connection: Connection) -> None:
    """Five thousand lanes of eight, by sequence, among ten times as many; a few are stuck."""
    run(
        connection,
        "INSERT INTO oncebox.key (consumer, key, last, gap) SELECT 'c1', 'k' || n, 0, "
        "CASE WHEN n % 1000 = 0 THEN statement_timestamp() END FROM generate_series(1, 50000) n",
    )
    run(
        connection,
        "INSERT INTO oncebox.queue (seq, consumer, source, message_id, type, fingerprint, payload, headers, "
        "content_type, provenance, lane, version, turn) SELECT 2000000 + n, 'c1', 'l', 'l' || n, 'paid', '', "
        "'', '', '', '{}', 'k' || n % 5000 + 1, n / 5000 + 1, n < 5000 FROM generate_series(0, 39999) n",
    )


def fill_queue(connection: Connection, first: int, last: int, consumer: str = "'c' || n % 5") -> None:
    """Rows of the queue, of three types in turn. Its indexes are made afterwards, which is quicker."""
    indexes = run(
        connection,
        "SELECT indexrelid::regclass, pg_get_indexdef(indexrelid) FROM pg_index "
        "WHERE indrelid = 'oncebox.queue'::regclass AND NOT indisprimary",
    )
    for name, _ in indexes:
        run(connection, f"DROP INDEX {name}")
    run(
        connection,
        "INSERT INTO oncebox.queue (seq, consumer, source, message_id, type, fingerprint, payload, headers, "
        f"content_type, provenance, due, deaths) SELECT n, {consumer}, 's', 'm' || n, "
        "(ARRAY['paid', 'sent', 'report'])[n % 3 + 1], decode(md5(n::text), 'hex'), '\\x7b7d', '\\x90', "
        "'application/json', '{}', statement_timestamp() + (n % 10 = 0)::int * interval '1 hour', "
        "(n % 1000 = 999)::int "
        f"FROM generate_series({first}, {last}) n",
    )
    for _, definition in indexes:
        run(connection, definition)
    run(connection, f"SELECT setval('oncebox.queue_seq', {last})")


class Plan(NamedTuple):
    """What PostgreSQL did."""

    nodes: list[tuple[str, str]]
    """(node type, relation), the relation empty where there is none."""
    buffers: int

    def scans(self) -> set[str]:
        """Tables that were read from end to end."""
        return {relation for kind, relation in self.nodes if kind == "Seq Scan"}


def explain(
    connection: Connection, name: str, params: dict[str, Any], *, generic: bool, **names: str
) -> Plan:
    """Run the query, with a plan for these values or for any, and take it back."""
    query = getattr(load("postgresql"), name).of(**names)
    call = Call(query, params)
    values = postgresql.parameters(call)
    given = ", ".join(_literal(values[parameter]) for parameter in query.names)
    with connection.transaction(force_rollback=True):
        run(connection, f"SET LOCAL plan_cache_mode = force_{'generic' if generic else 'custom'}_plan")
        run(connection, "DEALLOCATE ALL")
        run(connection, f"PREPARE asked AS {query.numbered}")
        rows = run(connection, f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE asked({given})")
    ((found,),) = rows
    plan = (found if isinstance(found, list) else json.loads(found))[0]["Plan"]
    nodes: list[tuple[str, str]] = []
    left = [plan]
    while left:
        node = left.pop()
        nodes.append((node["Node Type"], node.get("Relation Name", "")))
        left += node.get("Plans", [])
    return Plan(nodes, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _literal(value: Any) -> str:
    is_bytes = isinstance(value, list) and any(isinstance(one, bytes) for one in value)
    return postgresql.literal(value) + ("::bytea[]" if is_bytes else "")


def run(connection: Connection, sql: str) -> list[tuple[Any, ...]]:
    """One statement, without parameters."""
    cursor = connection.execute(sql.encode())
    return list(cursor.fetchall()) if cursor.description else []
