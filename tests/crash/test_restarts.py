"""The database server killed under load, and a database that is away for a while."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from tests.crash.effects import reader
from tests.crash.harness import Harness, driver_url
from tests.servers import Postgres, Proxy
from tests.waiting import eventually

VARIANTS = ("psycopg", "asyncpg")
NOBODY_DIES = 60.0
"""A heartbeat that is late because the machine is busy is no death here."""


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "policy",
    [{"mode": "inline"}, {"mode": "stored", "batch": 20}, {"mode": "inline", "durability": "group"}],
    ids=["inline", "stored batch", "group"],
)
def test_server_killed_while_500_messages_flow(
    harness: Callable[..., Harness], disposable_postgres: Postgres, variant: str, policy: dict[str, Any]
) -> None:
    url = disposable_postgres.create_database()
    with harness(variant, url, policy={**policy, "concurrency": 2}, lapse_seconds=NOBODY_DIES) as world:
        world.send(*(f"m{number}" for number in range(500)))
        for _ in range(2):
            world.start()
        for handled in (60, 250):
            eventually(partial(_has_effects, url, handled), 60)
            disposable_postgres.kill9()
            disposable_postgres.start()
        world.finish(seconds=60)
        assert not world.tables().attempts, "a lost server is nobody's failure"


def _has_effects(url: str, at_least: int) -> bool:
    with closing(reader(url)) as connection:
        (row,) = connection.execute("SELECT count(*) FROM effects").fetchall()
    return bool(row[0] >= at_least)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mode", ["inline", "stored"])
def test_nothing_is_received_acked_or_charged_while_the_database_is_away(
    harness: Callable[..., Harness],
    postgres: Postgres,
    proxy_to: Callable[[int], Proxy],
    variant: str,
    mode: str,
) -> None:
    proxy = proxy_to(postgres.port)
    words = {"behaviour": {"a": "hang"}, "lapse_seconds": NOBODY_DIES}
    with harness(variant, policy={"mode": mode}, **words) as world:
        for _ in range(2):
            world.start(url=driver_url(proxy.through(world.plain_url), variant))
        world.send("a")
        world.wait_for("hanging")
        proxy.cut(refuse=True)
        acked = world.broker.stats.acked
        world.open_gate()
        names = (f"m{number}" for number in itertools.count())
        eventually(lambda: _is_paused(world, names), 60)
        delivered = world.broker.stats.delivered
        # More arrives, and stays where it is.
        world.send(*(f"n{number}" for number in range(40)))
        eventually(lambda: world.broker.stats.ready >= 40)
        assert world.broker.stats.acked == acked
        assert world.broker.stats.delivered == delivered
        proxy.pass_through()
        world.finish(seconds=60)
        assert not world.tables().attempts


def _is_paused(world: Harness, names: Iterator[str]) -> bool:
    """Every consumer has noticed, and nobody asks the broker any more. Who asked before noticing gets
    what comes next, and keeps it: each is sent something to notice with."""
    asking = any(
        len(world.seen("asks", pid=child.pid)) > len(world.seen("received", pid=child.pid))
        for child in world.workers
    )
    if asking and not world.broker.stats.ready:
        world.send(next(names))
    noticed = re.compile(r"consumer c: .*paused, trying again \(2\)")
    return not asking and all(noticed.search(child.output) for child in world.workers)


@pytest.mark.parametrize("mode", ["inline", "stored"])
def test_outage_longer_than_the_heartbeat_may_lapse_is_nobodys_death(
    harness: Callable[..., Harness], postgres: Postgres, proxy_to: Callable[[int], Proxy], mode: str
) -> None:
    proxy = proxy_to(postgres.port)
    with harness("psycopg", policy={"mode": mode}, behaviour={"*": "hang"}, lapse_seconds=4.0) as world:
        world.send("a")
        if mode == "inline":
            # A first start inline is not marked; the second one is.
            first = world.start()
            world.wait_for("hanging")
            first.kill()
            first.wait()
        workers = [world.start(url=proxy.through(world.plain_url)) for _ in range(2)]
        eventually(lambda: [worker for worker in workers if world.seen("hanging", pid=worker.pid)])
        proxy.cut(refuse=True)
        eventually(lambda: _silence(world) > 5.0)
        world.open_gate()
        proxy.pass_through()
        world.finish(seconds=60)
        assert not world.tables().attempts


def _silence(world: Harness) -> float:
    """How long ago the last heartbeat was, by the database's clock."""
    with closing(reader(world.plain_url)) as connection:
        (row,) = connection.execute(
            "SELECT extract(epoch FROM clock_timestamp() - max(heartbeat))::float8 FROM oncebox.worker"
        ).fetchall()
    return float(row[0])
