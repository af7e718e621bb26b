"""A ledger in partitions: the same answers wherever a row lies, and nothing goes that has to stay."""

import asyncio
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from oncebox import App, Inbox, Message, Status
from oncebox.archive import rows
from oncebox.core import partitions, sweep
from oncebox.core.leaves import KINDS, lowest
from oncebox.errors import LockBusy, TransactionEnded, UsageError
from oncebox.identity.times import id_made_at
from oncebox.runtime.schema import migrate
from oncebox.runtime.sweeper import DAY_PAUSE, PAUSE, Sweeper
from tests.cli.inside import inside
from tests.cli.kit import oncebox
from tests.engines.plans import MARK, explain
from tests.operate.partitioned import WINDOW, Ledger, days_ago, on_day, uuid7
from tests.waiting import eventually_async


@pytest.fixture
def open_ledger(pg_url: str) -> Iterator[Callable[..., Ledger]]:
    opened: list[Ledger] = []

    def one(**words: Any) -> Ledger:
        opened.append(Ledger(pg_url, **words))
        return opened[-1]

    yield one
    for each in opened:
        each.own.close()


@pytest.fixture
def ledger(open_ledger: Callable[..., Ledger]) -> Ledger:
    return open_ledger()


def handle(ledger: Ledger) -> None:
    if ledger.asyncpg:

        @ledger.billing.handler()
        async def took(message: Message, conn: asyncpg.Connection) -> None:
            await conn.execute("INSERT INTO effect (id) VALUES ($1)", message.id)
    else:

        @ledger.billing.handler()
        async def paid(message: Message, conn: psycopg.AsyncConnection[Any]) -> None:
            await conn.execute("INSERT INTO effect (id) VALUES (%s)", (message.id,))


@pytest.mark.parametrize("driver", ["postgresql", "postgresql+asyncpg"])
def test_a_key_is_known_wherever_its_row_lies(open_ledger: Callable[..., Ledger], driver: str) -> None:
    ledger = open_ledger(driver=driver)
    handle(ledger)
    before, now, timeless = uuid7(), uuid7(), "evt-1"
    first = [Message(id=before, payload=b"1"), Message(id=timeless, payload=b"2")]
    assert [each.status for each in ledger.process(*first)] == [Status.PROCESSED] * 2
    ledger.split()
    later = [Message(id=now, payload=b"3"), Message(id=uuid7(-60), payload=b"4")]
    assert [each.status for each in ledger.process(*later)] == [Status.PROCESSED] * 2
    assert [each.status for each in ledger.process(*first, *later)] == [Status.DUPLICATE] * 4
    assert ledger.ids(ledger.leaf(0)) == {before, now}
    assert ledger.ids("ledger_1_rest") == {timeless, later[1].id}
    assert ledger.process(Message(id=now, payload=b"other"))[0].status is Status.DEAD, (
        "a conflict is one still"
    )
    assert sorted(ledger.rows("SELECT count(*), count(DISTINCT id) FROM effect")) == [(4, 4)]


def test_a_ledger_that_was_split_before_its_trigger_changed_is_migrated_in_all_its_parts(
    ledger: Ledger,
) -> None:
    ledger.split()
    ledger.own.execute(
        "DELETE FROM oncebox.version WHERE version >= 12; DROP PROCEDURE oncebox.guard_open; "
        "DROP TRIGGER refuse_early_commit ON oncebox.ledger; "
        "CREATE CONSTRAINT TRIGGER refuse_early_commit AFTER INSERT ON oncebox.ledger "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (current_setting('oncebox.claim', true) <> '') "
        "EXECUTE FUNCTION oncebox.refuse_early_commit()"
    )
    assert migrate(ledger.app.database)
    ((parts, triggers, conditions),) = ledger.rows(
        "SELECT count(*), count(t.oid), count(t.tgqual) FROM pg_class c "
        "LEFT JOIN pg_trigger t ON t.tgrelid = c.oid AND t.tgname = 'refuse_early_commit' "
        "WHERE c.relname LIKE 'ledger%' AND c.relkind IN ('r', 'p')"
    )
    assert parts > 3
    assert (triggers, conditions) == (parts, 0)
    for message_id in (uuid7(), "evt-1"):
        ledger.own.execute("BEGIN; SET LOCAL oncebox.claim = 'a.1.1'")
        ledger.own.execute(
            "INSERT INTO oncebox.ledger (consumer, source, message_id, type, fingerprint) "
            "VALUES ('billing', '', %s, '', '')",
            (message_id,),
        )
        with pytest.raises(psycopg.Error, match="a handler must not commit"):
            ledger.own.execute("COMMIT")


def test_stored_messages_are_worked_off_as_ever(open_ledger: Callable[..., Ledger]) -> None:
    ledger = open_ledger(mode="stored")
    handle(ledger)
    ledger.split()
    messages = [Message(id=id_, payload=b"1") for id_ in (uuid7(), "evt-1")]
    assert [each.status for each in ledger.process(*messages)] == [Status.STORED] * 2

    async def work_off() -> None:
        async with ledger.app.running():
            await eventually_async(lambda: len(ledger.rows("SELECT 1 FROM effect")) == 2, 30)

    asyncio.run(work_off())
    assert [each.status for each in ledger.process(*messages)] == [Status.DUPLICATE] * 2


def test_a_day_that_is_past_goes_at_once_and_what_must_stay_is_moved(ledger: Ledger) -> None:
    ledger.split(30, 20)
    gone = ledger.known(20, 40)
    [dead], [unfinished], [unknown], [late] = (ledger.known(20) for _ in range(4))
    with_result, young = ledger.known(20, 3), ledger.known(2, 2)
    ledger.rows(f"UPDATE oncebox.ledger SET state = 1 WHERE message_id = '{unfinished}'")
    ledger.rows(f"UPDATE oncebox.ledger SET finished = now() WHERE message_id = '{late}'")
    ledger.rows(
        "INSERT INTO oncebox.dead (consumer, source, message_id, fingerprint, type, payload, headers, content_type, "
        f"provenance, received, reason) VALUES ('billing', '', '{dead}', '', '', '', '', '', '{{}}', now(), 'conflict')"
    )
    ledger.rows(
        "INSERT INTO oncebox.effect (consumer, source, message_id, token, key, request, state) "
        f"VALUES ('billing', '', '{unknown}', 't', 'k', '', 'parked')"
    )
    for each in with_result:
        ledger.rows(
            f"INSERT INTO oncebox.result (consumer, source, message_id, body) VALUES ('billing', '', '{each}', '')"
        )
    counted = Sweeper(ledger.app.database, [ledger.billing], "me")
    assert asyncio.run(counted.count()) == {"billing": 43}
    assert counted.over == [ledger.leaf(30), ledger.leaf(20)], "a dry run says which partitions go"
    sweeper = ledger.walk()
    assert sweeper.counts == {"billing": len(gone) + len(with_result)}
    assert sorted(sweeper.over) == [ledger.leaf(30), ledger.leaf(20)]
    assert ledger.ids() == {dead, unfinished, unknown, late, *young}
    assert ledger.ids("ledger_1_rest") == {dead, unfinished, unknown, late, *young}
    assert ledger.ids("result") == set()
    assert days_ago(20) not in ledger.tree().splits[0].days
    [(up_to,)] = ledger.rows("SELECT now() - received FROM oncebox.forgotten")
    assert timedelta(days=19) < up_to < timedelta(days=21), "not up to what came late and stays"
    handle(ledger)
    outcomes = ledger.process(Message(id=gone[0], payload=b""), Message(id=young[0], payload=b"", type=""))
    assert (outcomes[0].status, outcomes[0].reason) == (Status.DEAD, "outside window")
    assert ledger.rows("SELECT * FROM effect") == []


def test_a_clock_that_is_a_month_ahead_drops_nothing_of_the_window(ledger: Ledger) -> None:
    ledger.split(20)
    ids = set(ledger.known(20, 5))
    # The last walk went by a clock that was fifteen days behind this one.
    ledger.rows("UPDATE oncebox.sweep SET passed = now(), cutoff = now() - interval '15 days'")
    sweeper = ledger.walk()
    assert (ledger.ids(), sweeper.over) == (ids, [])


def test_days_to_come_are_made_ahead_and_take_what_came_too_early(ledger: Ledger) -> None:
    ledger.split()
    leaf = ledger.leaf(-3)
    early = on_day(days_ago(-3))
    ledger.rows(f"ALTER TABLE oncebox.ledger_1 DETACH PARTITION oncebox.{leaf}; DROP TABLE oncebox.{leaf}")
    handle(ledger)
    ledger.process(Message(id=early, payload=b"1"))
    assert ledger.ids("ledger_1_rest") == {early}
    ledger.walk()
    assert ledger.ids(leaf) == {early}
    assert ledger.ids("ledger_1_rest") == set()
    assert ledger.tree().splits[0].days == [days_ago(-n) for n in range(8)]
    assert ledger.process(Message(id=early, payload=b"1"))[0].status is Status.DUPLICATE


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_an_app_with_an_engine_makes_and_drops_them_too(ledger: Ledger, driver: str) -> None:
    ledger.split(20)
    ledger.known(20, 5)
    leaf = ledger.leaf(-3)
    ledger.rows(f"ALTER TABLE oncebox.ledger_1 DETACH PARTITION oncebox.{leaf}; DROP TABLE oncebox.{leaf}")

    async def walk() -> Sweeper:
        engine = create_async_engine(ledger.url.replace("postgresql", f"postgresql+{driver}", 1))
        app = App(engine)
        sweeper = Sweeper(app.database, [app.consumer("billing", retention=WINDOW)], "me")
        sweeper.pause = 0.0
        assert await sweeper.cycle(rest_seconds=0.0)
        await app.aclose()
        await engine.dispose()
        return sweeper

    sweeper = asyncio.run(walk())
    assert (sweeper.counts, sweeper.over) == ({"billing": 5}, [ledger.leaf(20)])
    assert ledger.tree().splits[0].days == [days_ago(-n) for n in range(8)]


def test_a_day_is_followed_by_a_longer_rest_than_a_step(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.split(20)
    ledger.known(20, 5)
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    # By this clock every step takes a second.
    clock = SimpleNamespace(monotonic=itertools.count().__next__, time=time.time)
    monkeypatch.setattr("oncebox.runtime.sweeper.time", clock)
    monkeypatch.setattr("oncebox.runtime.sweeper.asyncio", SimpleNamespace(sleep=rest))
    sweeper = Sweeper(ledger.app.database, [ledger.billing], "me")
    assert asyncio.run(sweeper.cycle(rest_seconds=0.0, most_seconds=1e9))
    assert sweeper.over == [ledger.leaf(20)]
    assert DAY_PAUSE > PAUSE
    a_day = [DAY_PAUSE, PAUSE, DAY_PAUSE]
    assert rests == a_day * (len(rests) // 3), "a partition is emptied, walked and dropped"


def test_whoever_has_lost_the_lease_drops_nothing(ledger: Ledger) -> None:
    ledger.split(20)
    ids = set(ledger.known(20, 5))
    windows = {"billing": WINDOW}
    mine = ledger.ask(sweep.begin_walk(ledger.queries, "me", (), windows))
    assert ledger.ask(sweep.begin_walk(ledger.queries, "other", (), windows)) is None
    ledger.rows("UPDATE oncebox.sweep SET until = '-infinity'")
    assert ledger.ask(sweep.begin_walk(ledger.queries, "other", (), windows)) is not None
    leaf = next(each for each in mine.leaves if each.day is not None)
    fence = sweep.move(ledger.queries, mine, "me", mine.place)
    text = sweep.windows_text(windows, mine)
    assert ledger.ask(partitions.clear_day(ledger.queries, leaf, text, fence)) is None
    assert ledger.ask(partitions.retire_day(ledger.queries, mine.splits[0], leaf, fence)) is False
    assert ledger.ids(leaf.name) == ids


def test_a_partition_that_is_in_use_is_walked_and_dropped_later(ledger: Ledger) -> None:
    ledger.split(20)
    ledger.known(20, 5)
    handle(ledger)
    with ledger.connect() as other, other.transaction():
        # Somebody reads the old day, and a handler is at work on today's: neither is waited for.
        other.execute(f"SELECT 1 FROM oncebox.{ledger.leaf(20)}".encode())
        other.execute(
            b"INSERT INTO oncebox.ledger (consumer, source, message_id, type, fingerprint) "
            b"VALUES ('billing', '', %s, '', '')",
            (uuid7(),),
        )
        sweeper = ledger.walk()
        assert (sweeper.counts, sweeper.over) == ({"billing": 5}, []), "row by row, and the partition stays"
        assert ledger.process(Message(id=uuid7(), payload=b"1"))[0].status is Status.PROCESSED
    ledger.rows("UPDATE oncebox.sweep SET passed = NULL")
    assert ledger.walk().over == [ledger.leaf(20)]


def test_a_day_with_much_that_must_stay_is_walked(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "HELD_MAX", 2)
    ledger.split(20)
    held, gone = ledger.known(20, 3), ledger.known(20, 5)
    for each in held:
        ledger.rows(f"UPDATE oncebox.ledger SET state = 1 WHERE message_id = '{each}'")
    sweeper = ledger.walk()
    assert (sweeper.counts, sweeper.over) == ({"billing": len(gone)}, [])
    assert ledger.ids(ledger.leaf(20)) == set(held)


def test_what_has_an_archive_is_there_before_its_partition_goes(
    open_ledger: Callable[..., Ledger], tmp_path: Path
) -> None:
    ledger = open_ledger(archive=str(tmp_path / "archive"))
    ledger.split(20)
    ids = ledger.known(20, 5)
    sweeper = ledger.walk()
    assert (sweeper.counts, sweeper.over) == ({"billing": 5}, [ledger.leaf(20)])
    assert {row.id for row in rows(str(tmp_path / "archive"), consumer="billing")} == set(ids)


def test_the_guard_and_the_refusal_of_early_commits_work_as_ever(ledger: Ledger) -> None:
    ledger.split()
    id_ = uuid7()
    for first in (True, False):
        with (
            ledger.connect() as connection,
            connection.transaction(),
            Inbox("billing").once(connection, id_, payload=b"1") as claim,
        ):
            assert claim.first is first

    @ledger.billing.handler()
    async def commits(message: Message, conn: psycopg.AsyncConnection[Any]) -> None:
        await conn.execute("COMMIT")

    outcome = ledger.process(Message(id=uuid7(), payload=b"1"))[0]
    assert outcome.status is Status.DEAD
    assert isinstance(outcome.error, TransactionEnded)


def test_it_can_be_undone_and_done_again(ledger: Ledger) -> None:
    ids = {*ledger.known(0, 3), *ledger.known(30, 2)}
    assert ledger.ask(partitions.split(ledger.queries, "billing", "uuid7")) == 5
    with pytest.raises(UsageError, match="already"):
        ledger.ask(partitions.split(ledger.queries, "billing", "ulid"))
    assert ledger.ask(partitions.undo(ledger.queries, "billing")) == 5
    assert ledger.ids() == ledger.ids("ledger_rest") == ids
    with pytest.raises(UsageError, match="no partitions"):
        ledger.ask(partitions.undo(ledger.queries, "billing"))
    assert ledger.ask(partitions.split(ledger.queries, "billing", "uuid7")) == 5
    assert ledger.ids() == ids
    assert ledger.ids("ledger_rest") == set()


def test_a_busy_ledger_is_not_split(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "SPLIT_LOCK_MS", 50)
    with ledger.connect() as other, other.transaction():
        other.execute("SELECT 1 FROM oncebox.ledger")
        with pytest.raises(LockBusy):
            ledger.split()
    assert ledger.tree().splits == ()


def test_claims_that_come_while_it_is_split_are_not_lost(ledger: Ledger) -> None:
    handle(ledger)
    messages = [Message(id=uuid7(), payload=b"1") for _ in range(60)]
    halfway = threading.Event()
    outcomes: list[Any] = []

    async def all_of_them() -> None:
        for n, message in enumerate(messages):
            outcomes.append(await ledger.billing.process(message))
            if n == 10:
                halfway.set()
        await ledger.app.aclose()

    traffic = threading.Thread(target=lambda: asyncio.run(all_of_them()))
    traffic.start()
    assert halfway.wait(60)
    ledger.split()
    traffic.join(60)
    assert [each.status for each in outcomes] == [Status.PROCESSED] * 60
    assert ledger.ids() == {message.id for message in messages} == ledger.ids(ledger.leaf(0))
    assert ledger.rows("SELECT count(*) FROM effect") == [(60,)]


@pytest.mark.parametrize("ids", KINDS)
def test_a_day_is_where_its_ids_begin(ids: str) -> None:
    day = days_ago(3)
    low, high = lowest(ids, day), lowest(ids, day + timedelta(days=1))
    assert low < high
    if ids == "uuid7":
        assert low < on_day(day) < high < on_day(day + timedelta(days=1))
    if ids == "ulid":
        at = id_made_at(f"{low}0000000000000000")
        assert at is not None
        assert at % 86_400 == 0
    if ids == "date":
        assert low < f"{day.isoformat()}T23:59:59Z/7" < high


def test_a_walk_that_is_killed_anywhere_loses_nothing(pg_url: str) -> None:
    command = [sys.executable, "-m", "tests.operate.partition_dying", pg_url]
    done = subprocess.run(command, capture_output=True, timeout=110, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == ""
    assert found["kills"] == found["moments"] >= 25, "it died at each of its moments"


@pytest.mark.parametrize(
    "name", ["claim", "lookup_one", "mark_unfinished", "unclaim", "set_state", "guard_lookup"]
)
def test_a_key_is_looked_for_in_its_own_partition_only(ledger: Ledger, name: str) -> None:
    ledger.split(20)
    [known] = ledger.known(20)
    key = {"source": "", "message_id": known}
    params = {**key, **MARK, "consumer": "billing", "state": 2, "lazy": False, "token": "t", "rows": None}
    if many := name == "guard_lookup":
        params = {"consumer": "billing", "rows": [key]}
    plan = explain(ledger.own, name, params, generic=False)
    touched = {relation for _, relation in plan.nodes if relation.startswith("ledger")}
    # Of many keys, each is looked for in its own; the plan names them all.
    assert many or touched <= {"ledger", ledger.leaf(20)}, plan.nodes
    assert plan.buffers <= 60


def test_the_command_says_what_it_would_do_and_does_it(ledger: Ledger, tmp_path: Path) -> None:
    ledger.known(0, 3)

    def asked(*words: str) -> Any:
        return oncebox("partition", *words, "--database", ledger.url, "--json", cwd=tmp_path).json()

    assert asked() == {"partitioned": []}
    assert asked("billing", "--ids", "uuid7") == {"consumer": "billing", "applied": False, "rows": 3}
    assert ledger.tree().splits == ()
    assert asked("billing", "--ids", "uuid7", "--apply") == {
        "consumer": "billing",
        "applied": True,
        "rows": 3,
    }
    [found] = asked()["partitioned"]
    assert (found["consumer"], found["ids"], found["first_day"]) == ("billing", "uuid7", str(days_ago(0)))
    assert found["partitions"] == [*(ledger.leaf(-n) for n in range(8)), "ledger_1_rest"]
    words = ("--dry-run", "--consumer", "billing", "--retention", "10d", "--database", ledger.url, "--json")
    would = oncebox("purge", *words, cwd=tmp_path).json()
    assert (would["counts"], would.get("partitions", [])) == ({}, [])


def test_sqlite_has_none(sqlite_url: str) -> None:
    queries = App(sqlite_url).database.queries
    with pytest.raises(UsageError, match="PostgreSQL's"):
        list(partitions.count_rows(queries, "billing"))


def test_status_tells_whose_ledger_lies_in_partitions(ledger: Ledger) -> None:
    def told() -> tuple[list[Any], str]:
        words = ("status", "--database", ledger.url)
        return inside(*words, "--json").json()["partitioned"], " ".join(inside(*words).out.split())

    found, text = told()
    assert (found, "partitions" in text) == ([], False)
    ledger.split(3)
    days = ledger.tree().splits[0].days
    found, text = told()
    first, last = days[0].isoformat(), days[-1].isoformat()
    assert found == [
        {"consumer": "billing", "days": len(days), "first_day": first, "last_day": last, "missing": []}
    ]
    assert f"billing: ledger in partitions for {len(days)} days, {first} to {last}" in text
    assert "none for" not in text
    for day in days[1:]:
        ledger.rows(f"DROP TABLE oncebox.ledger_1_{day:%Y%m%d}")
    found, text = told()
    missing = [day.isoformat() for day in days[1:3]]
    assert (found[0]["days"], found[0]["missing"]) == (1, missing)
    assert f"none for {' and '.join(missing)}" in text
