"""What puts the figures into context: hand-written flows, concurrency, payload sizes, the C client."""

from __future__ import annotations

from benchmarks.comparison import ASYNCPG_FIRST, BOTH, Comparison, handmade, unprotected
from benchmarks.contenders.guard import block_alone, guard_block
from benchmarks.contenders.loop import WorkerLoop
from benchmarks.contenders.sqlite import SqliteLibrary, SqliteUnprotected
from benchmarks.load import Load
from benchmarks.make import library, peer, peers, pgbench, sized, zipf, zipf_keyed


def context() -> list[Comparison]:
    """What else was asked for, without a bar. Where time runs out, it runs out for the last ones."""
    return [*_limits(), *_loads(), *_flows(), *_peers(), *_sqlite(), *_more()]


def _limits() -> list[Comparison]:
    """The C client: how fast it could be."""
    rows = [
        Comparison(
            f"pgbench_{script}",
            f"{script} by pgbench, c=1, against A in psycopg",
            unprotected(),
            pgbench(script),
            BOTH[:1],
            slice_factor=2,
            quick=script in ("autocommit", "same_sql_chained"),
        )
        for script in ("unprotected", "autocommit", "same_sql", "same_sql_chained", "same_sql_batch")
    ]
    return rows + [
        Comparison(
            f"pgbench_{script}_c{c}",
            f"{script} by pgbench, c={c}, against A in asyncpg",
            unprotected(c),
            pgbench(script, c),
            ASYNCPG_FIRST[:1],
            slice_factor=2,
            quick=False,
        )
        for script in ("unprotected", "same_sql_chained")
        for c in (4, 16)
    ]


def _loads() -> list[Comparison]:
    """Duplicates, concurrency, payload sizes."""
    rows = [
        Comparison(
            "duplicates_10",
            "10 % duplicates, inline, c=1, against A",
            unprotected(),
            library("10 % duplicates", load=lambda: Load(duplicates=0.1)),
        ),
        Comparison(
            "worker_loop", "bare worker loop, no runtime around it, c=1, against A", unprotected(), WorkerLoop
        ),
        Comparison(
            "guard_block_c1",
            "guard inside conn.transaction(), which has sent BEGIN already, against the same without it",
            block_alone,
            guard_block,
            BOTH[:1],
            quick=False,
        ),
        Comparison(
            "inline_c4", "inline, c=4, against A", unprotected(4), library("inline", 4), ASYNCPG_FIRST
        ),
        Comparison(
            "group_c16",
            "group durability, c=16, against A",
            unprotected(16),
            library("group", 16, durability="group"),
            ASYNCPG_FIRST,
            quick=False,
        ),
        Comparison(
            "batch_c4",
            "batch=100, uniform accounts, c=4, against A",
            unprotected(4),
            library("batch=100", 4, batch=100),
            ASYNCPG_FIRST,
            quick=False,
        ),
        Comparison(
            "batch_c16",
            "batch=100, uniform accounts, c=16, against A",
            unprotected(16),
            library("batch=100", 16, batch=100),
            ASYNCPG_FIRST,
            quick=False,
        ),
    ]
    for size, name in ((10_000, "10kb"), (1_000_000, "1mb")):
        load = sized(size)
        rows += [
            Comparison(
                f"inline_{name}",
                f"inline, payloads of {size:,} bytes, c=1, against A",
                unprotected(1, load),
                library("inline", 1, load),
            ),
            Comparison(
                f"stored_{name}",
                f"stored, payloads of {size:,} bytes, c=1, against A",
                unprotected(1, load),
                library("stored, batch=100", 1, load, mode="stored", batch=100),
                quick=False,
            ),
        ]
    return rows


def _flows() -> list[Comparison]:
    """What is usually written by hand."""
    against = [
        Comparison(
            f"vs_pending_{how}",
            f"inline against pending → processing → completed {what}, c=1",
            handmade(f"pending_{how}"),
            library("inline"),
            quick=False,
        )
        for how, what in (
            ("bare", "in a table of keys and states alone"),
            ("seen", "with a commit of its own for pending"),
        )
    ]
    return against + [
        Comparison(
            f"{flow}_c{c}",
            f"hand-written {flow}, c={c}, against A",
            unprotected(c),
            handmade(flow, c),
            ASYNCPG_FIRST if c > 1 else BOTH,
            quick=c == 1,
        )
        for flow in ("pending", "select_for_update", "insert_complete")
        for c in (1, 4, 16)
    ]


def _peers() -> list[Comparison]:
    """The same handler on both sides: what a peer's user gets without writing another one."""
    return [
        Comparison(
            f"vs_{name}_handlers",
            f"stored, batch=100, c=2, against {name}: the same handler on both sides",
            make,
            library("stored, batch=100", 2, mode="stored", batch=100),
            ASYNCPG_FIRST[:1],
            quick=False,
            slice_factor=3,
        )
        for name, make in peers().items()
    ]


def _sqlite() -> list[Comparison]:
    return [
        Comparison(
            f"sqlite_{name}",
            f"{what}, against A on SQLite",
            lambda driver: SqliteUnprotected(),
            lambda driver, words=words, what=what: SqliteLibrary(what, **words),  # type: ignore[misc]
            ("sqlite",),
            place="sqlite",
            quick=name == "inline",
        )
        for name, what, words in (
            ("inline", "inline", {}),
            ("group", "group durability", {"durability": "group"}),
            ("set", "batch=100, set-based", {"batch": 100, "set_based": True}),
            ("stored", "stored, batch=100", {"mode": "stored", "batch": 100}),
        )
    ]


def _more() -> list[Comparison]:
    rows = [
        Comparison(
            f"pgbench_{script}",
            f"{script} by pgbench, c=1, against A in psycopg",
            unprotected(),
            pgbench(script),
            BOTH[:1],
            slice_factor=2,
            quick=False,
        )
        for script in ("insert_complete", "insert_complete_pipelined")
    ]
    return [
        *rows,
        Comparison(
            "batch_zipf_keyed_c4",
            "batch=100, Zipf accounts as ordering keys, c=4, against A",
            unprotected(4, zipf),
            library("batch=100, keyed", 4, zipf_keyed, batch=100),
            quick=False,
        ),
        Comparison(
            "vs_dbos_queue",
            "stored, batch=100, c=2, against dbos with its queue",
            peer("dbos", PEER_HOW="queue", PEER_CONCURRENCY="48"),
            library("stored, batch=100", 2, mode="stored", batch=100),
            ASYNCPG_FIRST[:1],
            quick=False,
            slice_factor=3,
        ),
    ]
