"""A large ledger is purged while messages are handled: `python -m proof.retention [ROWS]`, ten million by default.

Nine tenths of the rows are past their window. A process handles inline messages as fast as it can; another purges, in
slices: some seconds with it, some without, in turn, so that whatever else the machine does falls on both. What counts
is how many rows a second go while it purges, and what share of their rate the messages keep. Writes
`reports/retention.json`; exits 1 below 5,000 rows a second or 80 %, or when a row is gone that should be there.
Then the same with a ledger in partitions by day, whose days that are past are dropped: there it is 95 %.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psycopg

from oncebox import App, Message
from oncebox.core import partitions
from oncebox.core.leaves import midnight, read_tree
from oncebox.core.run import run
from oncebox.drivers.session import Settings, database_steps
from oncebox.runtime.schema import migrate
from oncebox.runtime.sweeper import Sweeper
from tests.operate.partitioned import days_ago, uuid7
from tests.servers import Postgres

T = TypeVar("T")
REPORT = Path("reports/retention.json")
ROWS = 10_000_000
OLD_SHARE = 0.9
WINDOW_SECONDS = 10 * 86_400.0
SLICE_SECONDS = 2.0
TASKS = 4
RATE_MIN = 5_000.0
KEPT_MIN = 0.8
OLD_DAYS = range(12, 102)
"""So many days ago are those that are dropped."""
YOUNG_DAYS = range(1, 10)
PARTITIONS_KEPT_MIN = 0.95

Count = Any
"""A number that processes share."""


class Part(msgspec.Struct, kw_only=True):
    """One of the two: row by row, or by partitions."""

    rows: int
    old: int
    purged: int
    purge_rows_per_second: float
    """While it purges."""
    messages_per_second: float
    """Without purge."""
    messages_per_second_during_purge: float
    kept: float
    """The second by the first: the median over pairs of neighbouring slices."""
    slices: int
    fill_seconds: float
    seconds: float
    left: int
    """Rows that are in the ledger at the end."""
    violations: list[str]


class Report(msgspec.Struct, kw_only=True):
    """What `reports/retention.json` holds."""

    walk: Part | None
    partitions: Part | None


INSERT = (
    "INSERT INTO oncebox.{table} (consumer, source, message_id, type, fingerprint, received, finished) "
    "SELECT 'billing', 'shop', {id}, 'paid', sha256(n::text::bytea), "
    "now() - make_interval(days => %(age)s), now() - make_interval(days => %(age)s) "
    "FROM generate_series(%(first)s::bigint, %(last)s::bigint - 1) n"
)


def fill(url: str, rows: int) -> int:
    """A ledger as years leave it: the old rows first. How many are past their window."""
    old = int(rows * OLD_SHARE)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE effect (id text NOT NULL)")
        # An index that is made afterwards is made in a tenth of the time.
        connection.execute("SET maintenance_work_mem = '256MB'")
        connection.execute("ALTER TABLE oncebox.ledger DROP CONSTRAINT ledger_pkey")
        for first, last, age in ((0, old, 40), (old, rows, 0)):
            text = INSERT.format(table="ledger", id="md5(n::text)::uuid::text")
            connection.execute(text.encode(), {"first": first, "last": last, "age": age})
        connection.execute("ALTER TABLE oncebox.ledger ADD PRIMARY KEY (consumer, source, message_id)")
        connection.execute("VACUUM ANALYZE oncebox.ledger")
        connection.execute("CHECKPOINT")
    return old


DAY_ID = (
    "(SELECT substr(hex, 1, 8) || '-' || substr(hex, 9) || '-7' || substr(md5(n::text)::uuid::text, 16) "
    "FROM lpad(to_hex({start} + (n - %(first)s) * 86400000 / (%(last)s - %(first)s)), 12, '0') hex)"
)
"""A UUIDv7 of a day that begins at `start`, in milliseconds; they are spread over the day, as they come."""


def fill_days(url: str, rows: int) -> int:
    """A ledger in partitions: the rows of days that are past, as many in each, and of days in the window. How many
    are past it."""
    app = App(url)
    session = app.database.connect(Settings())
    steps = database_steps(session)
    ask: Callable[[Any], Any] = lambda op: run(op, lambda step: steps[type(step)](step))  # noqa: E731
    queries = app.database.queries
    ask(partitions.split(queries, "billing", "uuid7"))
    [split] = ask(read_tree(queries, 0)).splits
    old, first = int(rows * OLD_SHARE), 0
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE effect (id text NOT NULL)")
        for ages, last in ((OLD_DAYS, old), (YOUNG_DAYS, rows)):
            bounds = [first + (last - first) * n // len(ages) for n in range(len(ages) + 1)]
            for days, low, high in zip(reversed(ages), bounds[:-1], bounds[1:], strict=True):
                day = days_ago(days)
                ask(partitions.make_day(queries, split, day))
                start = int(midnight(day).timestamp()) * 1000
                text = INSERT.format(table=f"ledger_1_{day:%Y%m%d}", id=DAY_ID.format(start=start))
                connection.execute(text.encode(), {"first": low, "last": high, "age": days})
            first = last
        connection.execute("VACUUM ANALYZE oncebox.ledger")
        connection.execute("CHECKPOINT")
    session.close()
    return old


def handle(url: str, done: Count, stop: Event) -> None:
    """A process that handles inline messages, one transaction each, until it is stopped."""
    app = App(url)
    billing = app.consumer("billing", mode="inline", retention=WINDOW_SECONDS)

    @billing.handler()
    async def paid(message: Message, conn: psycopg.AsyncConnection) -> None:
        await conn.execute("INSERT INTO effect (id) VALUES (%s)", (message.id,))

    async def one(task: int) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            await billing.process(Message(id=uuid7(), source="load", payload=b"{}"))
            with done.get_lock():
                done.value += 1

    async def all_of_them() -> None:
        await asyncio.gather(*(one(task) for task in range(TASKS)))
        await app.aclose()

    asyncio.run(all_of_them())


class InTurns(Sweeper):
    """Walks as `oncebox run` does, while it may."""

    def __init__(self, app: App, deleted: Count, go: Event, rests: Event) -> None:
        super().__init__(app.database, [app.consumer("billing", retention=WINDOW_SECONDS)], "proof")
        self._deleted = deleted
        self._go = go
        self._rests = rests

    async def may(self) -> None:
        """Tell what is gone by now, and wait for the next turn. No turn is as long as the lease."""
        self._deleted.value = self.counts.total()
        while not self._go.is_set():
            self._rests.set()
            await asyncio.sleep(0.01)
        self._rests.clear()

    async def paced(self, step: Awaitable[T], pause: float | None = None) -> T:
        await self.may()
        return await super().paced(step, pause)


def purge(url: str, deleted: Count, go: Event, rests: Event, ended: Event) -> None:
    """A process that walks the whole ledger."""

    async def walk() -> None:
        sweeper = InTurns(App(url), deleted, go, rests)
        await sweeper.may()
        while not await sweeper.cycle(rest_seconds=0.0):
            await sweeper.may()
        deleted.value = sweeper.counts.total()
        rests.set()

    asyncio.run(walk())
    ended.set()


def measure(url: str, most_seconds: float) -> dict[str, Any]:
    """Slices in turn until the walk has ended, or the time is over."""
    context = multiprocessing.get_context("spawn")
    done, deleted = context.Value("q", 0), context.Value("q", 0)
    stop, go, rests, ended = context.Event(), context.Event(), context.Event(), context.Event()
    load = context.Process(target=handle, args=(url, done, stop))
    walk = context.Process(target=purge, args=(url, deleted, go, rests, ended), daemon=True)
    load.start()
    walk.start()
    slices: list[tuple[bool, float, float]] = []
    purged_seconds = 0.0
    try:
        _until(lambda: done.value > 500, 60, "the load does not start")
        began = time.monotonic()
        while not ended.is_set() and time.monotonic() - began < most_seconds:
            for with_purge in (False, True) if len(slices) % 4 == 0 else (True, False):
                turn = time.monotonic()
                (go.set if with_purge else go.clear)()
                time.sleep(0.2)  # what is under way ends
                handled, gone, at = done.value, deleted.value, time.monotonic()
                ended.wait(SLICE_SECONDS) if with_purge else time.sleep(SLICE_SECONDS)
                seconds = time.monotonic() - at
                slices.append(
                    (with_purge, (done.value - handled) / seconds, (deleted.value - gone) / seconds)
                )
                go.clear()
                purged_seconds += time.monotonic() - turn if with_purge else 0.0
        # What is under way is counted when it has ended.
        _until(rests.is_set, 120, "the purge does not stop")
        complete = ended.is_set()
    finally:
        stop.set()
        load.join(30)
        load.kill()
        walk.kill()
    # The last slice with purge may be a stump.
    whole = slices[: len(slices) // 2 * 2]
    pairs = [(whole[n], whole[n + 1]) for n in range(0, len(whole), 2)]
    ratios = [
        (a if a[0] else b)[1] / max((b if a[0] else a)[1], 1e-9)
        for a, b in pairs[: -1 if len(pairs) > 1 else None]
    ]
    return {
        "complete": complete,
        "handled": done.value,
        "purged": deleted.value,
        # Not a median: a partition goes at once, and in most slices none does.
        "rate": deleted.value / max(purged_seconds, 1e-9),
        "without": statistics.median(each[1] for each in slices if not each[0]),
        "during": statistics.median(each[1] for each in slices if each[0]),
        "kept": statistics.median(ratios),
        "slices": len(slices),
    }


def _until(holds: Callable[[], bool], seconds: float, otherwise: str) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, otherwise
        time.sleep(0.05)


def judge(
    url: str, rows: int, old: int, found: dict[str, Any], kept_min: float = KEPT_MIN
) -> tuple[int, list[str]]:
    """What is wrong, in words."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT count(*), count(*) FILTER (WHERE source = 'load'), (SELECT count(*) FROM effect) "
            "FROM oncebox.ledger"
        ).fetchone()
    assert row is not None
    left, new, effects = row
    wrong = []
    if left != rows - found["purged"] + new:
        wrong.append(f"{left:,} rows are left, not {rows - found['purged'] + new:,}")
    if new != effects or new < found["handled"]:
        wrong.append(
            f"{found['handled']:,} messages were handled, {new:,} are known, {effects:,} took effect"
        )
    if found["complete"] and found["purged"] != old:
        wrong.append(f"{found['purged']:,} of {old:,} old rows were purged")
    if found["rate"] < RATE_MIN:
        wrong.append(f"{found['rate']:,.0f} rows/s were purged, not {RATE_MIN:,.0f}")
    if found["kept"] < kept_min:
        wrong.append(f"messages kept {found['kept']:.0%} of their rate, not {kept_min:.0%}")
    return left, wrong


def part(rows: int, most_seconds: float, by_days: bool = False) -> Part:
    """Fill a database, purge it under load, and judge."""
    began = time.monotonic()
    # Commits wait for the disk, as users' do; the servers of tests don't.
    with Postgres(
        "fsync=on", "shared_buffers=512MB", "max_wal_size=8GB", "checkpoint_timeout=30min"
    ) as server:
        url = server.create_database()
        migrate(App(url).database)
        old = (fill_days if by_days else fill)(url, rows)
        filled = time.monotonic() - began
        print(f"{rows:,} rows in {filled:.0f} s", flush=True)
        found = measure(url, most_seconds)
        left, wrong = judge(url, rows, old, found, PARTITIONS_KEPT_MIN if by_days else KEPT_MIN)
    return Part(
        rows=rows, old=old, purged=found["purged"], purge_rows_per_second=round(found["rate"]),
        messages_per_second=round(found["without"]), messages_per_second_during_purge=round(found["during"]),
        kept=round(found["kept"], 3), slices=found["slices"], fill_seconds=round(filled, 1),
        seconds=round(time.monotonic() - began, 1), left=left, violations=wrong,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.retention", description=__doc__)
    parser.add_argument("rows", nargs="?", type=int, default=ROWS)
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop measuring after so long")
    parser.add_argument("--only", choices=("walk", "partitions"), help="one of the two")
    told = parser.parse_args()
    walk = part(told.rows, told.seconds) if told.only != "partitions" else None
    days = part(told.rows, told.seconds, by_days=True) if told.only != "walk" else None
    report = Report(walk=walk, partitions=days)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    print(msgspec.json.format(msgspec.json.encode(report)).decode())
    return int(any(each.violations for each in (walk, days) if each is not None))


if __name__ == "__main__":
    sys.exit(main())
