"""Commits that do not wait for the disk, and a server that dies before they are there.

A lazy commit is in the server's memory until somebody writes it; here those who would are stopped, so
a SIGKILL really loses the commit. The tests look, before they judge, that it was lost.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import psutil
import pytest

from tests.conftest import missing
from tests.crash.effects import reader
from tests.crash.harness import Harness, driver_url
from tests.crash.worker import Trip
from tests.servers import PgBouncer, Postgres, Unavailable
from tests.waiting import eventually

GROUP = {"mode": "inline", "durability": "group"}
AT_THE_FLUSH = Trip("Flush", "before", "stop")


class Site:
    """A server that loses lazy commits when it is killed, with or without a pooler before it."""

    def __init__(self, server: Postgres, through: str) -> None:
        self.server = server
        self.url = server.create_database()
        self.worker_url = self.url
        self.stack = ExitStack()
        if through == "pgbouncer":
            try:
                bouncer = self.stack.enter_context(PgBouncer(server.port))
            except Unavailable as error:
                missing(error)
            self.worker_url = bouncer.url(self.url.rsplit("/", 1)[1]) + "?pooler=transaction"

        eventually(self._stop_the_writer, 30)

    def _stop_the_writer(self) -> bool:
        """Suspend the WAL writer in its sleep: at work, it holds a lock that every commit waits for."""
        look = "SELECT pid, wait_event FROM pg_stat_activity WHERE backend_type = 'walwriter'"
        with closing(reader(self.url)) as connection:
            ((pid, _),) = connection.execute(look).fetchall()
            writer = psutil.Process(pid)
            writer.suspend()
            eventually(lambda: writer.status() == psutil.STATUS_STOPPED)
            ((_, waits_for),) = connection.execute(look).fetchall()
        if waits_for != "WalWriterMain":
            writer.resume()
            return False
        self.stack.callback(_resume, writer)
        return True

    def lose(self, *, effects: int = 0) -> None:
        """The server dies without a word, and comes back with what was on disk: so many effects."""
        self.server.kill9()
        self.server.start()
        left = self.effects()
        assert left >= effects, "acked, and lost"
        assert left <= effects, "the commits were on disk; this test shows nothing"

    def effects(self) -> int:
        with closing(reader(self.url)) as connection:
            (row,) = connection.execute("SELECT count(*) FROM effects").fetchall()
        return int(row[0])


def _resume(process: psutil.Process) -> None:
    try:
        process.resume()
    except psutil.NoSuchProcess:
        return


@pytest.fixture(params=["directly", "pgbouncer"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    try:
        server = Postgres("autovacuum=off", "bgwriter_lru_maxpages=0", "checkpoint_timeout=1h")
    except Unavailable as error:
        missing(error)
    with server:
        site = Site(server, request.param)
        with site.stack:
            yield site


@pytest.fixture(params=["psycopg", "asyncpg"])
def group(request: pytest.FixtureRequest, site: Site, harness: Callable[..., Harness]) -> Iterator[Harness]:
    """Workers whose commits are lazy, and no delivery that comes back while the test runs.

    They write as little as they can: behind a pooler heartbeats and tallies wait for the disk, and take
    along what was lazy.
    """
    calm = {"heartbeat_seconds": 300.0, "lapse_seconds": 900.0, "quiet": True}
    with harness(request.param, site.url, policy=GROUP, visibility_seconds=900.0, **calm) as world:
        world.spec.url = driver_url(site.worker_url, request.param)
        yield world


def stop_before_the_flush(world: Harness, site: Site, **changes: Any) -> None:
    """One worker, its group committed lazily and not flushed; it stands still, and asks for no more."""
    world.start(trip=AT_THE_FLUSH, hold_at=3, **changes)
    world.send("a", "b", "c")
    world.wait_for("tripped")
    assert site.effects() == 3
    assert not world.seen("ack")


def test_group_that_was_not_flushed_is_handled_again(group: Harness, site: Site) -> None:
    stop_before_the_flush(group, site)
    site.lose()
    group.open_gate()
    group.stopped = 1
    group.workers[0].kill(signal.SIGCONT)
    group.finish()


@pytest.mark.parametrize("durability", ["group", "each"])
def test_duplicate_of_an_unflushed_commit_is_flushed_before_its_ack(
    group: Harness, site: Site, durability: str
) -> None:
    ack_duplicates(group, site, policy={**GROUP, "durability": durability})
    site.lose(effects=3)
    group.stopped = 2
    for worker in group.workers:
        worker.kill(signal.SIGCONT)
    group.finish()


def ack_duplicates(world: Harness, site: Site, **changes: Any) -> None:
    """Another worker gets what the first one has committed and not flushed, and acks it.

    It was there before, since what a worker writes when it starts takes along what was lazy until then;
    and it stands still after its acks, for the same reason.
    """
    world.start(hold_at=0, sleep_after=3, **changes)
    stop_before_the_flush(world, site)
    world.send("a", "b", "c")
    world.open_gate()
    eventually(lambda: world.broker.stats.acked == 3, 30)


@pytest.mark.parametrize("group", ["psycopg"], indirect=True)
def test_bug_acks_before_the_flush(group: Harness, site: Site) -> None:
    group.start(plant="flush skipped", sleep_after=3)
    group.send("a", "b", "c")
    eventually(lambda: group.broker.stats.acked == 3, 30)
    site.lose()
    found = group.violations(quiet=False)
    assert any(
        "I2: message 'a' of 's' for 'c' was acked, and no ledger row says why" in text for text in found
    )


@pytest.mark.parametrize("group", ["psycopg"], indirect=True)
def test_bug_acks_a_duplicate_of_an_unflushed_commit(group: Harness, site: Site) -> None:
    ack_duplicates(group, site, plant="flush skipped")
    site.lose()
    assert any(text.startswith("I2") for text in group.violations(quiet=False))


@pytest.mark.parametrize("group", ["psycopg"], indirect=True)
@pytest.mark.parametrize("site", ["pgbouncer"], indirect=True)
def test_bug_does_not_count_what_a_flush_vouches_for(group: Harness, site: Site) -> None:
    # Only a pooler's client outlives the server: its flush then succeeds, on a session that knows nothing.
    stop_before_the_flush(group, site, plant="flush vouches for nothing")
    site.lose()
    group.workers[0].kill(signal.SIGCONT)
    eventually(lambda: len(group.seen("ack")) == 3, 30)
    assert any(text.startswith("I2") for text in group.violations(quiet=False))
