"""How taking and claiming change as tables grow: 10 thousand rows against millions, in turns."""

from __future__ import annotations

import statistics
import time
from typing import Any
from unittest import mock

import psycopg
from psycopg import sql

from benchmarks.contenders.library import Library
from benchmarks.load import TYPE, Load, Payment
from benchmarks.options import Options
from benchmarks.pairs import Pace, duel, spread
from benchmarks.stage import Stage
from oncebox import App
from oncebox.core import stored
from oncebox.core.run import run
from oncebox.core.steps import Step
from oncebox.core.stored import work_batch
from oncebox.drivers.database import Database
from oncebox.runtime.members import connection_settings
from oncebox.runtime.performer import Performer
from oncebox.runtime.schema import migrate

SMALL = 10_000
CHUNK = 250_000
TEMPLATES = 1_000


class Tables:
    """oncebox's tables in a schema of their own, filled by multiplying rows that the library wrote."""

    def __init__(self, stage: Stage, schema: str) -> None:
        self.schema = schema
        # What only fills tables need not wait for the disk.
        self._admin = psycopg.connect(stage.url, autocommit=True, options="-c synchronous_commit=off")
        database = Database(stage.url, schema=schema)
        migrate(database)
        self.app = App(database)
        self.consumer = self.app.consumer("bench", mode="stored", batch=100)
        self.consumer.handler(TYPE)(_nothing)
        for message in Load().fresh(TEMPLATES):
            self.consumer.process_sync(message)
        self._execute("CREATE TABLE {s}.template AS TABLE {s}.queue")
        self._execute("CREATE TABLE {s}.finished AS SELECT * FROM {s}.ledger")
        self._execute("UPDATE {s}.finished SET seq = NULL, finished = received")
        self.app.close()
        self.session = database.connect(connection_settings(self.consumer.policy))
        self.side = database.connect(connection_settings(self.consumer.policy))
        self.work = self.consumer.work("bench", 1)
        self._numbers = iter(range(1_000_000))

    def _execute(self, text: str, *params: Any) -> None:
        self._admin.execute(sql.SQL(text).format(s=sql.Identifier(self.schema)), params)

    def _columns(self, table: str) -> sql.Composed:
        rows = self._admin.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
            "AND column_name NOT IN ('seq', 'message_id', 'due', 'received') ORDER BY ordinal_position",
            (self.schema, table),
        )
        return sql.SQL(", ").join(sql.Identifier(row[0]) for row in rows)

    def add_waiting(self, count: int) -> None:
        """More rows in the queue, each with its row in the ledger."""
        copies = -(-count // TEMPLATES)
        text = sql.SQL(
            "WITH more AS (INSERT INTO {s}.queue (message_id, {c}) "
            "SELECT message_id || '-' || %s || '-' || g, {c} FROM {s}.template, generate_series(1, %s) g LIMIT %s "
            "RETURNING consumer, source, message_id, type, fingerprint, seq) "
            "INSERT INTO {s}.ledger (consumer, source, message_id, type, fingerprint, seq) SELECT * FROM more"
        )
        composed = text.format(s=sql.Identifier(self.schema), c=self._columns("queue"))
        self._admin.execute(composed, (str(next(self._numbers)), copies, count))

    def add_finished(self, count: int, seconds: float) -> int:
        """More rows in the ledger, chunk by chunk, for as long as there is time; how many it were."""
        ends, added = time.monotonic() + seconds, 0
        text = sql.SQL(
            "INSERT INTO {s}.ledger (message_id, {c}) "
            "SELECT message_id || '-' || %s || '-' || g, {c} FROM {s}.finished, generate_series(1, %s) g"
        )
        composed = text.format(s=sql.Identifier(self.schema), c=self._columns("ledger"))
        while added < count and time.monotonic() < ends:
            chunk = min(CHUNK, count - added)
            self._admin.execute(composed, (f"f{next(self._numbers)}", max(1, chunk // TEMPLATES)))
            added += max(1, chunk // TEMPLATES) * TEMPLATES
        return added

    def vacuum(self) -> None:
        """As autovacuum leaves it after a while."""
        self._execute("VACUUM (ANALYZE) {s}.ledger")
        self._execute("VACUUM (ANALYZE) {s}.queue")

    def take_seconds(self) -> float:
        """One real turn of a worker; the time of the step that takes. The queue is filled up again."""
        taken = [0.0]
        performer = Performer(self.work, self.session, self.side.side, is_async=False)

        def timed(step: Step) -> Any:
            started = time.perf_counter()
            reply = performer(step)
            if _takes(step):
                taken[0] = time.perf_counter() - started
            return reply

        with mock.patch.object(stored, "CHAINED_SECONDS", 0.0):  # one batch, and not as many as go in a turn
            handled = run(work_batch(self.work), timed)
        assert handled == 100, f"{handled} were taken"
        self.add_waiting(100)
        return taken[0]

    def close(self) -> None:
        self.session.close()
        self.side.close()
        self._execute("DROP SCHEMA {s} CASCADE")
        self._admin.close()


def _nothing(payment: Payment) -> None:
    """The handler: only taking is looked at."""


def _takes(step: Step) -> bool:
    calls = getattr(step, "calls", ()) or (getattr(step, "call", None),)
    return any(call is not None and call.query.name == "take" for call in calls)


def compare(small: Tables, big: Tables, turns: int) -> dict[str, Any]:
    """Takes in turns; the median of the ratios of neighbours."""
    for tables in (small, big):
        for _ in range(8):
            tables.take_seconds()
    pairs = [(small.take_seconds(), big.take_seconds()) for _ in range(turns)]
    ratios = [high / low for low, high in pairs]
    return {
        "value": round(statistics.median(ratios), 2),
        "spread": spread(ratios),
        "small_ms": round(1e3 * statistics.median(low for low, _ in pairs), 3),
        "big_ms": round(1e3 * statistics.median(high for _, high in pairs), 3),
    }


async def growth(stage: Stage, options: Options, seconds: float) -> dict[str, Any]:
    """Takes with many waiting; then with many finished as well; then claims among the many."""
    waiting, finished = (100_000, 500_000) if options.quick else (1_000_000, 10_000_000)
    ends = time.monotonic() + seconds
    small, big = Tables(stage, "growth_small"), Tables(stage, "growth_big")
    try:
        for tables, count in ((small, SMALL), (big, waiting)):
            tables.add_waiting(count - TEMPLATES)
            tables.vacuum()
        small.add_finished(SMALL, 60)
        turns = 40 if options.quick else 100
        by_waiting = compare(small, big, turns)
        reached = big.add_finished(finished, max(5.0, (ends - time.monotonic()) * 0.7))
        big.vacuum()
        both = compare(small, big, turns)
        claims = await duel(
            stage,
            Library("inline, 10 k rows", "psycopg", schema=small.schema),
            Library(f"inline, {reached:,} rows", "psycopg", schema=big.schema),
            Pace(options.rounds, options.slice_seconds, 20.0),
        )
    finally:
        small.close()
        big.close()
    rows = {"waiting": waiting, "finished": reached, "against": SMALL}
    return {
        "take_growth": {**both, "rows": rows, "scaled_down": reached < 10_000_000 or waiting < 1_000_000},
        "take_waiting": {**by_waiting, "rows": {"waiting": waiting, "against": SMALL}},
        "claims": {**claims.as_json(), "rows": rows},
    }
