"""Archive before purge: nothing is deleted that is not verified to be in the archive, and it can come back."""

import logging
from pathlib import Path
from typing import Any

import pytest

from oncebox import Status
from oncebox.archive import messages, open_place, parts, rows
from oncebox.archive.places import Folder
from oncebox.core import archiving, sweep
from oncebox.core.audit import Act
from oncebox.core.run import run_async
from oncebox.drivers.session import Settings
from oncebox.errors import ArchiveError, ConfigError
from oncebox.metrics import Operations
from oncebox.runtime.sessions import finished
from oncebox.runtime.sweeper import Sweeper, check_archive
from tests.core.fixtures import inline, on
from tests.core.kit import Shop, effect, event
from tests.operate.test_sweep import DAY, WINDOW, age, marked

ACT = Act(verb="archive restore", who="me", reason="late duplicates")


@pytest.fixture(autouse=True)
def _clean(request: pytest.FixtureRequest) -> None:
    """The shared database's walk starts anew for every test."""
    if "shop" in request.fixturenames:
        shop: Shop = request.getfixturevalue("shop")
        shop.rows(f"DELETE FROM {shop.table('sweep')}")
        shop.rows(f"INSERT INTO {shop.table('sweep')} (name) VALUES ('ledger')")


async def old(shop: Shop, consumer: Any, count: int = 5, days: float = 12) -> None:
    """Messages that were handled so long ago."""
    for n in range(count):
        await shop.settle(consumer, event(f"old-{n}", payload={"n": n}, key="k", headers=(("x", b"\xff"),)))
    age(shop, days)
    # What is archived goes by whole days: up to a day and some hours after its window is over.
    marked(shop, consumer, days - 0.5)


async def walk(shop: Shop, *consumers: Any, sweeper: Sweeper | None = None) -> Sweeper:
    sweeper = sweeper or Sweeper(shop.app.database, consumers, "me")
    for _ in range(50):
        if await sweeper.cycle(rest_seconds=0.0):
            return sweeper
    raise AssertionError("the walk does not end")


def ids(found: Any) -> list[str]:
    return [each.id for each in found]


async def test_rows_are_in_the_archive_before_they_are_gone(shop: Shop, tmp_path: Path) -> None:
    billing = shop.consumer(retention=WINDOW, archive=tmp_path / "archive", keep_payload="always")
    shop.handler(billing)(effect)
    await old(shop, billing)
    await shop.settle(billing, event("new"))
    sweeper = await walk(shop, billing)
    assert (sweeper.counts, sweeper.archived) == ({"billing": 5}, {"billing": 5})
    assert (shop.count("ledger"), shop.count("kept"), shop.count("result")) == (1, 1, 1)
    found = list(messages(tmp_path / "archive", consumer="billing"))
    assert ids(found) == [f"old-{n}" for n in range(5)]
    message = found[3].message()
    assert (message.payload, message.headers, message.key) == (b'{"n":3}', (("x", b"\xff"),), "k")
    assert all(
        each.result is not None and each.received < each.received.now(each.received.tzinfo) for each in found
    )


async def test_what_is_restored_is_known_again_for_a_whole_window(shop: Shop, tmp_path: Path) -> None:
    billing = shop.consumer(retention=WINDOW, archive=str(tmp_path), keep_payload="always")
    shop.handler(billing)(effect)
    await old(shop, billing)
    first = await shop.deliver(billing, event("old-2", payload={"n": 2}))
    await walk(shop, billing)
    queries, archived = shop.app.database.queries, list(rows(tmp_path))
    before = list(messages(tmp_path, consumer="billing"))

    async def ask(op: Any) -> Any:
        return await shop.perform(billing, lambda work: op)

    # One of them came late, and took effect again: that one's row is not touched.
    assert (await shop.settle(billing, event("old-0", payload={"n": 0}))).status is Status.PROCESSED
    assert await ask(archiving.unknown(queries, archived)) == 4
    restored = await ask(archiving.restore(queries, archived, ACT))
    assert sorted(restored) == [("billing", "", f"old-{n}") for n in range(1, 5)]
    assert await ask(archiving.restore(queries, archived, ACT)) == []
    again = await shop.deliver(billing, event("old-2", payload={"n": 2}))
    assert (again.status, again.result) == (Status.DUPLICATE, first.result)
    assert shop.effects() == {"old-0": 2, **{f"old-{n}": 1 for n in range(1, 5)}}
    assert shop.rows(f"SELECT verb, count(*) FROM {shop.table('audit')} GROUP BY verb") == [
        ("archive restore", 4)
    ]
    assert (await walk(shop, billing)).counts == {}, "it has its window again"
    # Twelve days later: when they were received stays what it is.
    received = shop.rows(
        f"SELECT message_id, received FROM {shop.table('ledger')} WHERE message_id <> 'old-0'"
    )
    age(shop, 12)
    marked(shop, billing, 11.5)
    _put_received(shop, received)
    await walk(shop, billing)
    assert shop.count("ledger") == 0
    # Archived a second time, and yet read once, in the same place.
    assert ids(messages(tmp_path, consumer="billing")) == [*ids(before), "old-0"]
    assert sorted(ids(rows(tmp_path))) in (
        sorted(ids(archived)), sorted([*ids(archived), "old-0"])
    ), "old-0 was received on one day, or on two"  # fmt: skip


def _put_received(shop: Shop, received: Any) -> None:
    for id_, at in received:
        value = str(at) if shop.kind.engine == "sqlite" else f"'{at.isoformat()}'"
        shop.rows(f"UPDATE {shop.table('ledger')} SET received = {value} WHERE message_id = '{id_}'")


class Away(Folder):
    """An archive that fails until it is mended."""

    broken = True

    def put(self, name: str, data: bytes) -> None:
        if self.broken:
            raise ArchiveError("archive: it is away")
        super().put(name, data)


@on("sqlite", "psycopg")
@inline
async def test_an_archive_that_fails_stops_its_consumers_purge_and_nobody_elses(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    billing = shop.consumer(retention=WINDOW, archive=str(tmp_path))
    other = shop.consumer("other", retention=WINDOW, archive=str(tmp_path / "other"))
    plain = shop.consumer("plain", retention=WINDOW)
    for consumer in (billing, other, plain):
        shop.handler(consumer)(effect)
        await shop.settle(consumer, event(f"{consumer.name}-1"))
    age(shop, 12)
    sweeper = Sweeper(shop.app.database, [billing, other, plain], "me")
    place = sweeper._places[str(tmp_path)] = Away(tmp_path)
    with caplog.at_level(logging.ERROR, "oncebox"):
        await walk(shop, sweeper=sweeper)
    assert sweeper.counts == {"other": 1, "plain": 1}
    assert (sweeper.failures, sweeper.archive_failures) == (1, {"billing": 1})
    assert "consumer billing: archive: it is away" in caplog.text
    operations = Operations(shop.app)
    operations.running = type("Running", (), {"sweeper": sweeper})()
    figures = {family.name: family.samples for family in await operations.families(own=True)}
    await operations.close()
    assert {s.labels["consumer"]: s.value for s in figures["oncebox_archive_failures_total"]}["billing"] == 1
    assert {s.labels["consumer"]: s.value for s in figures["oncebox_archived_total"]}["other"] == 1
    place.broken = False
    await walk(shop, sweeper=sweeper)
    assert sweeper.counts == {"billing": 1, "other": 1, "plain": 1}
    assert ids(rows(tmp_path, consumer="billing")) == ["billing-1"]


@on("psycopg", "sqlite")
@inline
async def test_a_row_that_changed_after_it_was_written_is_not_deleted(shop: Shop, tmp_path: Path) -> None:
    billing = shop.consumer(retention=WINDOW, archive=str(tmp_path))
    shop.handler(billing)(effect)
    await old(shop, billing, 3)
    changes = [
        f"UPDATE {shop.table('ledger')} SET type = 'x' WHERE message_id = 'old-0'",
        (
            f"INSERT INTO {shop.table('ledger')} (consumer, source, message_id, type, fingerprint, received, finished) "
            f"SELECT consumer, source, 'late', type, fingerprint, received, finished FROM {shop.table('ledger')} "
            "WHERE message_id = 'old-1'"
        ),
    ]

    class Slow(Folder):
        def put(self, name: str, data: bytes) -> None:
            super().put(name, data)
            while changes:
                shop.rows(changes.pop(0))

    sweeper = Sweeper(shop.app.database, [billing], "me")
    sweeper._places[str(tmp_path)] = Slow(tmp_path)
    await walk(shop, sweeper=sweeper)
    assert {row[0] for row in shop.rows(f"SELECT message_id FROM {shop.table('ledger')}")} == {
        "old-0",
        "late",
    }
    await walk(shop, sweeper=sweeper)
    assert shop.count("ledger") == 0
    assert {each.id for each in rows(tmp_path)} == {"old-0", "old-1", "old-2", "late"}


@on("psycopg", "sqlite")
@inline
async def test_who_lost_the_lease_while_writing_deletes_nothing(shop: Shop, tmp_path: Path) -> None:
    billing = shop.consumer(retention=WINDOW, archive=str(tmp_path))
    shop.handler(billing)(effect)
    await old(shop, billing, 3)
    other = Sweeper(shop.app.database, [billing], "other")
    lapse = "until = 0" if shop.kind.engine == "sqlite" else "until = '-infinity'"

    class Slow(Folder):
        def put(self, name: str, data: bytes) -> None:
            super().put(name, data)
            shop.rows(f"UPDATE {shop.table('sweep')} SET {lapse}, holder = 'third'")

    mine = Sweeper(shop.app.database, [billing], "me")
    mine._places[str(tmp_path)] = Slow(tmp_path)
    assert not await mine.cycle(rest_seconds=0.0)
    assert (mine.counts, shop.count("ledger")) == ({}, 3)
    await walk(shop, sweeper=other)
    assert (shop.count("ledger"), len(parts(tmp_path))) == (0, 1), "the same rows are the same part"


@on("psycopg", "sqlite")
@inline
async def test_a_walk_may_take_longer_than_its_lease(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    billing = shop.consumer(retention=WINDOW)
    shop.handler(billing)(effect)
    await old(shop, billing, 3)
    queries, windows = shop.app.database.queries, {"billing": WINDOW}
    left = "SELECT until > {} FROM " + shop.table("sweep")
    session = await shop.app.database.connect_async(Settings())
    perform = Sweeper(shop.app.database, [billing], "me").performer(session)
    try:
        monkeypatch.setattr(sweep, "LEASE_SECONDS", 30.0)
        mine = await run_async(sweep.begin_walk(queries, "me"), perform)
        assert mine is not None
        monkeypatch.setattr(sweep, "LEASE_SECONDS", 600.0)
        assert await run_async(sweep.sweep_step(queries, windows, mine, "me", 1), perform) is not None
    finally:
        await finished(session.close())
    later = (
        "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER) + 300000000"
        if shop.kind.engine == "sqlite"
        else "now() + interval '300 seconds'"
    )
    assert shop.rows(left.format(later)) in ([(True,)], [(1,)])


@on("sqlite")
@inline
async def test_large_payloads_are_read_a_part_at_a_time(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "PART_BYTES", 2500)
    billing = shop.consumer(retention=WINDOW, archive=str(tmp_path), keep_payload="always")
    shop.handler(billing, payload=bytes)(effect)
    for n in range(6):
        await shop.settle(billing, event(f"old-{n}", payload=b"x" * 1000))
    age(shop, 12)
    await walk(shop, billing)
    assert sorted(part.rows for part in parts(tmp_path)) in ([2, 2, 2], [1, 1, 2, 2], [1, 1, 1, 1, 2])
    assert ids(messages(tmp_path, consumer="billing")) == [f"old-{n}" for n in range(6)]


@on("sqlite")
@inline
async def test_what_is_archived_goes_by_whole_days(shop: Shop, tmp_path: Path) -> None:
    billing = shop.consumer(retention=WINDOW, archive=str(tmp_path))
    shop.handler(billing)(effect)
    await shop.settle(billing, event("old"))
    age(shop, 11.5)
    sweeper = Sweeper(shop.app.database, [billing], "me")
    assert (await sweeper.count())["billing"] == 1
    found = None
    for _ in range(2):  # the day may end between the two looks, but not twice
        late = sweeper._windows()["billing"] - WINDOW
        assert 0 <= late < DAY
        age(shop, -1.5 + 2 / 24 + late / DAY / 2)
        found = await sweeper.count()
        if sweeper._windows()["billing"] - WINDOW >= late:
            break
        age(shop, 1.5 - 2 / 24 - late / DAY / 2)
    assert found == {}, "past its window, and not its day"


@on("sqlite")
@inline
async def test_an_archive_that_can_not_be_one_is_refused_at_start(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, url, said in (("a", "ftp://x/y", "ftp://"), ("b", str(tmp_path / "file"), "not a folder")):
        consumer = shop.consumer(name, archive=url)
        with pytest.raises(ConfigError, match=said) as refused:
            check_archive(consumer)
        assert f"consumer '{name}'" in str(refused.value)
        del shop.app.consumers[name]
    with pytest.raises(ConfigError, match="folder"):
        shop.consumer("c", archive=7)


@pytest.mark.xdist_group("s3")
@on("psycopg")
@inline
async def test_a_bucket_is_an_archive_too(shop: Shop, bucket: str) -> None:
    billing = shop.consumer(retention=WINDOW, archive=bucket, keep_payload="always")
    shop.handler(billing)(effect)
    await old(shop, billing)
    await walk(shop, billing)
    assert shop.count("ledger") == 0
    assert ids(messages(bucket, consumer="billing")) == [f"old-{n}" for n in range(5)]
    assert [part.rows for part in parts(open_place(bucket))] in ([5], [1, 4], [2, 3], [3, 2], [4, 1])


def test_a_look_finds_what_the_locked_one_finds(shop: Shop) -> None:
    queries = shop.app.database.queries
    locks = "" if shop.kind.engine == "sqlite" else "\nFOR UPDATE OF l SKIP LOCKED"
    assert queries.sweep_look.text + locks == queries.sweep_find.text
