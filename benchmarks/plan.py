"""Everything that is compared: the figures with their bars, then what puts them into context."""

from __future__ import annotations

from benchmarks import brokers
from benchmarks.comparison import ALL, ASYNCPG_FIRST, Comparison, handmade, unprotected
from benchmarks.contenders.guard import alone, guard
from benchmarks.contenders.sqlite import SqliteLibrary, SqliteUnprotected
from benchmarks.context import context
from benchmarks.load import Load
from benchmarks.make import keyed, library, peers, zipf

MEASURES = ("take_growth", "memory_mb", "import_ms", "relay_latency_ms", "relay_vs_loop")
"""Figures that are no ratio of two rates; see `measures`."""


def figures() -> list[Comparison]:
    """One for each bar that is a ratio of two rates."""
    stored = library("stored, batch=100", mode="stored", batch=100)
    return [
        Comparison("inline_c1", "inline, c=1, against A", unprotected(), library("inline"), ALL, bar=0.95),
        Comparison(
            "inline_c16",
            "inline, c=16, against A",
            unprotected(16),
            library("inline", 16),
            ASYNCPG_FIRST,
            bar=0.75,
        ),
        Comparison(
            "group_c1",
            "group durability, c=1, against A",
            unprotected(),
            library("group", durability="group"),
            bar=1.05,
        ),
        Comparison(
            "group_c4",
            "group durability, c=4, against A",
            unprotected(4),
            library("group", 4, durability="group"),
            bar=1.05,
        ),
        Comparison(
            "guard_c1",
            "guard in the user's transaction, against the same without it",
            alone,
            guard,
            ALL,
            bar=0.70,
        ),
        Comparison(
            "duplicates",
            "all-duplicate stream, c=1, against A",
            unprotected(),
            library("all duplicates", load=lambda: Load(duplicates=1.0)),
            bar=1.3,
        ),
        Comparison(
            "batch_handlers",
            "batch=100, ordinary handlers, c=1, against A",
            unprotected(),
            library("batch=100", batch=100),
            bar=2.5,
        ),
        Comparison(
            "batch_zipf_c4",
            "batch=100, Zipf accounts, c=4, against A at c=4",
            unprotected(4, zipf),
            library("batch=100", 4, zipf, batch=100),
            ASYNCPG_FIRST,
            bar=1.0,
            slice_factor=2,
        ),
        Comparison(
            "batch_set",
            "batch=100, set-based handler, c=1, against A",
            unprotected(),
            library("batch=100, set-based", batch=100, set_based=True),
            bar=10.0,
        ),
        Comparison(
            "stored", "stored, end to end, batch=100, c=1, against A", unprotected(), stored, ALL, bar=2.5
        ),
        Comparison(
            "stored_set",
            "stored, end to end, set-based, c=1, against A",
            unprotected(),
            library("stored, set-based", set_based=True, mode="stored", batch=100),
            ASYNCPG_FIRST,
            bar=8.0,
        ),
        Comparison(
            "ordered_stored",
            "stored, batch=100, ordered over 10,000 keys, c=1, against the same without order",
            library("stored, batch=100", load=keyed, mode="stored", batch=100),
            library("stored, batch=100, ordered", load=keyed, mode="stored", batch=100, order_by="key"),
            bar=0.60,
        ),
        Comparison(
            "vs_pending",
            "inline against pending → processing → completed, c=1",
            handmade("pending"),
            library("inline"),
            ALL,
            bar=1.8,
        ),
        Comparison(
            "vs_pending_batch",
            "batch=100 against pending → processing → completed, c=1",
            handmade("pending"),
            library("batch=100", batch=100),
            bar=5.0,
        ),
        *(
            Comparison(
                f"vs_{name}",
                f"stored, set-based, batch=300, against {name}, each at its best, end to end, exact effect",
                peers()[name],
                library("stored, set-based, batch=300", mode="stored", batch=300, set_based=True),
                ASYNCPG_FIRST[:1],
                bar=bar,
                slice_factor=3,
            )
            for name, bar in (("pgqueuer", 3.0), ("procrastinate", 12.0), ("dbos", 70.0))
        ),
        Comparison(
            "sqlite_batch",
            "batch=100, ordinary handlers, against A on SQLite (synchronous=FULL)",
            lambda driver: SqliteUnprotected(),
            lambda driver: SqliteLibrary("batch=100", batch=100),
            ("sqlite",),
            bar=5.0,
            place="sqlite",
        ),
        *brokers.comparisons(),
    ]


def checks() -> list[Comparison]:
    """Promises about batches that have a bar of their own, and the flows by hand at another concurrency."""
    failing = library("batch=100, one in 100 fails", load=lambda: Load(failing_every=100), batch=100)
    return [
        Comparison(
            "vs_pending_c4",
            "inline against pending → processing → completed, c=4",
            handmade("pending", 4),
            library("inline", 4),
            ASYNCPG_FIRST,
            bar=1.8,
            quick=False,
        ),
        Comparison(
            "vs_pending_batch_c4",
            "batch=100 against pending → processing → completed, c=4",
            handmade("pending", 4),
            library("batch=100", 4, batch=100),
            ASYNCPG_FIRST,
            bar=5.0,
            quick=False,
            slice_factor=2,
        ),
        Comparison(
            "batch_zipf_vs_single",
            "batch=100 against one by one, Zipf accounts, c=4",
            library("inline", 4, zipf),
            library("batch=100", 4, zipf, batch=100),
            bar=1.0,
            slice_factor=2,
        ),
        Comparison(
            "batch_failing",
            "batch=100, one message in 100 fails, against none failing",
            library("batch=100", batch=100),
            failing,
            bar=0.5,
        ),
    ]


def names() -> list[str]:
    """Everything that `--only` takes."""
    return [*(row.name for row in (*figures(), *checks(), *context())), *MEASURES]
