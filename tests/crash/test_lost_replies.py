"""Connections that are lost, or fall silent, at COMMIT and in the middle of it.

Whether it happened is not known then: the message must not be acked before that is resolved, and in
the end it has one effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.crash.deaf import DeafProxy
from tests.crash.harness import Harness, driver_url
from tests.crash.nursery import Child
from tests.crash.worker import Trip
from tests.servers import Postgres
from tests.waiting import eventually

AT_THE_GATE = 7
"""The advisory lock on which a COMMIT waits in the server."""

pytestmark = [
    pytest.mark.parametrize("variant", ["psycopg", "psycopg-async", "asyncpg"]),
    pytest.mark.parametrize("mode", ["inline", "stored"]),
]


class Line:
    """A worker whose connections to the database pass through a proxy."""

    def __init__(self, world: Harness, proxy: DeafProxy, variant: str) -> None:
        self.world = world
        self.proxy = proxy
        self.url = driver_url(proxy.through(world.plain_url), variant)

    def start(self, **changes: Any) -> Child:
        return self.world.start(url=self.url, **changes)

    def to_the_commit(self) -> None:
        """One message, handled, and its worker about to commit; nothing may be acked from here on."""
        self.start(trip=Trip("Commit", "before", "wait"))
        self.world.send("a")
        self.world.wait_for("tripped")
        self.acks = len(self.world.seen("ack"))

    def is_unacked(self) -> bool:
        return len(self.world.seen("ack")) == self.acks


@pytest.fixture
def line(harness: Callable[..., Harness], postgres: Postgres, variant: str, mode: str) -> Iterator[Line]:
    # A heartbeat that is late because the machine is busy is no death here.
    words = {"policy": {"mode": mode}, "lapse_seconds": 60.0}
    with DeafProxy(postgres.port) as proxy, harness(variant, **words) as world:
        yield Line(world, proxy, variant)


def test_connection_cut_before_commit_is_sent(line: Line) -> None:
    line.to_the_commit()
    line.proxy.cut()
    assert line.is_unacked()
    line.world.open_gate()
    line.world.finish()
    assert not line.world.tables().attempts


def test_commit_that_never_arrives_is_not_acked(line: Line) -> None:
    line.to_the_commit()
    line.proxy.go_silent()
    line.world.open_gate()
    eventually(lambda: _waits_for_its_worker(line.world))
    assert line.is_unacked()
    line.proxy.cut()
    line.world.finish()
    assert not line.world.tables().attempts


def test_commit_that_arrives_late_is_acked_then(line: Line) -> None:
    line.to_the_commit()
    line.proxy.go_silent()
    line.world.open_gate()
    assert line.is_unacked()
    line.proxy.resume()
    line.world.finish()


def test_commit_whose_reply_is_lost_is_acked_as_a_duplicate(line: Line) -> None:
    line.to_the_commit()
    line.proxy.go_deaf()
    line.world.open_gate()
    eventually(lambda: line.world.tables().effects)
    assert line.is_unacked()
    line.proxy.cut()
    line.world.finish()
    assert len(line.world.seen("start")) == 1
    assert not line.world.tables().attempts


@pytest.mark.parametrize("end", ["commits", "rolls back"])
def test_connection_cut_while_the_server_commits(line: Line, end: str) -> None:
    with _commits_wait(line.world.plain_url) as server:
        line.world.send("a")
        line.start()
        pid = eventually(lambda: _waiting_backend(server))
        acks = len(line.world.seen("ack"))
        line.proxy.cut()
        assert len(line.world.seen("ack")) == acks
        if end == "rolls back":
            server.execute("SELECT pg_terminate_backend(%s)", (pid,))
        server.execute("SELECT pg_advisory_unlock(%s)", (AT_THE_GATE,))
        line.world.finish()
        assert not line.world.tables().attempts


@contextmanager
def _commits_wait(url: str) -> Iterator[psycopg.Connection]:
    """COMMIT of an effect waits inside the server, in a deferred trigger, for a lock that we hold."""
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(
            f"CREATE FUNCTION wait_here() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN "
            f"PERFORM pg_advisory_xact_lock_shared({AT_THE_GATE}); RETURN NULL; END'"
        )
        server.execute(
            "CREATE CONSTRAINT TRIGGER wait_here AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION wait_here()"
        )
        server.execute("SELECT pg_advisory_lock(%s)", (AT_THE_GATE,))
        yield server


def _waiting_backend(server: psycopg.Connection) -> int | None:
    row = server.execute("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchone()
    return row[0] if row else None


def _waits_for_its_worker(world: Harness) -> bool:
    """The server has a transaction open in which nothing arrives any more."""
    with psycopg.connect(world.plain_url, autocommit=True) as server:
        row = server.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
        ).fetchone()
    return bool(row and row[0])
