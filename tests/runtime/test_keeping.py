"""What keeps a process alive in the database's eyes, and a writer's turn in SQLite."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from oncebox.core.steps import Begin, Call, Commit
from oncebox.drivers import sqlite
from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings
from oncebox.errors import LockBusy
from oncebox.runtime.keeper import Keeper
from oncebox.runtime.schema import migrate
from oncebox.runtime.sessions import AsyncSideChannel, finished
from tests.core.fixtures import postgresql, stored
from tests.core.flows import item
from tests.core.kit import Call as HandlerCall
from tests.core.kit import Shop, event
from tests.waiting import eventually, eventually_async

PATIENCE_SECONDS = 30.0


@stored
@postgresql
async def test_a_lease_is_kept_for_as_long_as_its_handler_runs(shop: Shop) -> None:
    # Far more often than a lease lapses: a beat that is late must not cost it.
    shop.app.heartbeat_seconds = 0.2
    reporting = shop.consumer(lease_seconds=6.0, concurrency=2)
    gate = shop.gate()
    runs = 0

    @shop.handler(reporting, "report", long=True)
    async def makes(call: HandlerCall) -> None:
        nonlocal runs
        runs += 1
        await gate.wait()
        await call.db.effect(call.message.id)

    await shop.deliver(reporting, event(type="report"))
    async with shop.app.running():
        await gate.reached_by_somebody()
        [(due,)] = shop.rows(f"SELECT due FROM {shop.table('queue')}")
        # By then it would have lapsed, and the other worker has looked: it does so twice a second.
        over = "SELECT clock_timestamp() > ?::timestamptz + interval '2 seconds'"
        await eventually_async(lambda: shop.rows(over, due) == [(True,)], PATIENCE_SECONDS)
        gate.open()
        await eventually_async(lambda: shop.count("queue") == 0, PATIENCE_SECONDS)
    assert runs == 1
    assert shop.effects() == {"evt-1": 1}
    assert shop.attempts("evt-1") == []


def test_who_stops_signs_off_although_a_handler_elsewhere_holds_the_only_write_lock(
    file: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(side=True, lock_timeout_seconds=0.2)
    keeper = Keeper(file, settings, "w", beat_seconds=0.05)
    other = file.connect(Settings())
    workers = Call(file.queries.lapsed, {"seconds": -60.0})
    keeper.start()
    assert keeper.first_beat.wait(PATIENCE_SECONDS)
    assert [row[0] for row in other.fetch(workers)] == ["w"]
    refused = threading.Event()
    side = sqlite.AsyncSqliteSession.side

    async def seen(session: sqlite.AsyncSqliteSession, call: Call) -> object:
        try:
            return await side(session, call)
        except LockBusy:
            if call.query.name == "retire_hands":
                refused.set()
            raise

    monkeypatch.setattr(sqlite.AsyncSqliteSession, "side", seen)
    other.begin(Begin("t"))
    keeper.stop()
    assert refused.wait(PATIENCE_SECONDS)
    other.commit(Commit("t"))
    keeper.join(PATIENCE_SECONDS)
    assert other.fetch(workers) == []
    other.close()


def test_only_who_was_heard_of_all_the_time_judges_by_silence(
    file: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever kept this process from beating, a handler with SQLite's only write lock, say, has kept others, too."""
    now = 0.0
    monkeypatch.setattr("oncebox.runtime.keeper.time", SimpleNamespace(monotonic=lambda: now))
    keeper = Keeper(file, Settings(side=True), "w", beat_seconds=2.0, lapse_seconds=10.0)
    judged: list[bool] = []
    silence = range(20, 27)
    for second in range(50):
        now = float(second)
        judged.append(keeper.may_judge())
        if second % 2 == 0 and second not in silence:
            keeper._note_beat()
    seconds = [second for second, may in enumerate(judged) if may]
    # From the first beat on for a whole lapse nobody is judged, nor in the silence, nor for a lapse after it.
    assert seconds == [*range(11, 24), *range(39, 50)]


def test_a_late_finisher_does_not_end_the_lease_of_whoever_took_over(file: Database) -> None:
    keeper = Keeper(file, Settings(side=True), "w", beat_seconds=2.0)
    keep = keeper.keeper_of(60.0)
    late, now = item(), item()
    late.seq = now.seq = 7
    late.token, now.token = "w/1", "w/2"
    keep(late, True)
    keep(now, True)
    keep(late, False)
    assert list(keeper._leases) == ["w/2"]


@stored
@postgresql
async def test_a_worker_beats_while_its_handler_keeps_the_loop_busy(shop: Shop) -> None:
    shop.app.heartbeat_seconds = 0.05
    busy = shop.consumer()
    beats: set[object] = set()

    def beat_again() -> bool:
        beats.update(when for (when,) in shop.rows(f"SELECT heartbeat FROM {shop.table('worker')}"))
        return len(beats) > 3

    @shop.handler(busy)
    async def blocks(call: HandlerCall) -> None:
        # Blocks the loop itself, as a handler that computes for long would; not for longer than it may.
        eventually(beat_again, 25)

    await shop.deliver(busy, event())
    async with shop.app.running():
        await eventually_async(lambda: shop.count("queue") == 0, PATIENCE_SECONDS)
    assert shop.attempts("evt-1") == []


@pytest.fixture
def file(tmp_path: Path) -> Database:
    database = Database(f"sqlite:///{tmp_path / 'turns.db'}")
    migrate(database)
    return database


@pytest.mark.parametrize("how", ["begin", "side"])
async def test_a_task_cancelled_while_it_waits_for_its_turn_gives_the_turn_back(
    file: Database, how: str
) -> None:
    settings = Settings(lock_timeout_seconds=5.0)
    holder = file.connect(settings)
    waiting = await file.connect_async(settings)
    holder.begin(Begin(token="t"))

    queries = file.queries
    heartbeat = Call(queries.heartbeat, {"id": "w", "host": "h", "pid": 1})
    step = waiting.begin(Begin(token="u")) if how == "begin" else waiting.side(heartbeat)
    task = asyncio.ensure_future(finished(step))
    await eventually_async(is_a_turn_taken, PATIENCE_SECONDS)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if how == "begin":
        waiting.rollback()
    holder.rollback()

    assert not is_a_turn_taken()
    other = await file.connect_async(settings)
    await other.begin(Begin(token="v"))
    other.commit(Commit(token="v"))
    for session in (holder, waiting, other):
        session.close()


def is_a_turn_taken() -> bool:
    """Whether a task of this loop has, or waits for, the writer's place."""
    locks = sqlite._loops.get(asyncio.get_running_loop(), {})
    return any(lock.locked() for lock in locks.values())


async def test_a_turn_that_does_not_come_in_time_is_busy_and_not_an_error_of_the_next(file: Database) -> None:
    settings = Settings(lock_timeout_seconds=0.05)
    holder = file.connect(settings)
    side = AsyncSideChannel(file, settings)
    heartbeat = Call(file.queries.heartbeat, {"id": "w", "host": "h", "pid": 1})
    holder.begin(Begin(token="t"))
    with pytest.raises(LockBusy):
        await side(heartbeat)
    holder.rollback()
    await side(heartbeat)
    await side.close()
    holder.close()
