"""Hosts that vanish and processes that stand still: others go on, and who comes back is too late."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from tests.crash.harness import Harness, driver_url
from tests.crash.worker import Trip
from tests.servers import Postgres, Proxy
from tests.waiting import eventually

TIMEOUT_SECONDS = 0.5
IDLE_SECONDS = TIMEOUT_SECONDS * 1.5 + 1.0
"""After that long the server ends a transaction in which nothing happens."""
SLACK_SECONDS = 20.0
"""What polling, maintenance and a busy machine may add to a bound."""


@pytest.mark.parametrize("variant", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("mode", ["inline", "stored"])
def test_messages_of_a_vanished_host_are_handled_by_others_within_the_bound(
    harness: Callable[..., Harness],
    postgres: Postgres,
    proxy_to: Callable[[int], Proxy],
    variant: str,
    mode: str,
) -> None:
    words = {"policy": {"mode": mode, "timeout": TIMEOUT_SECONDS}, "visibility_seconds": 2.0}
    with harness(variant, **words) as world:
        database, broker = proxy_to(postgres.port), proxy_to(urlsplit(world.broker.address).port or 0)
        gone = world.start(
            url=driver_url(database.through(world.plain_url), variant),
            address=world.broker.address.replace(
                f":{urlsplit(world.broker.address).port}/", f":{broker.port}/"
            ),
            behaviour={"*": "hang"},
            policy={"mode": mode, "timeout": 60},
            # The longer patience is the host's own; its session has the consumer's bound.
            idle_seconds=IDLE_SECONDS,
        )
        world.send("a", "b")
        world.wait_for("hanging")
        database.go_silent()
        broker.go_silent()
        since = time.monotonic()
        world.stopped = 1
        other = world.start()
        bound = world.spec.lapse_seconds + IDLE_SECONDS + 2.0 + SLACK_SECONDS
        eventually(lambda: len(world.tables().effects) == 2, bound)
        assert time.monotonic() - since < bound
        world.open_gate()
        database.resume()
        broker.resume()
        world.finish()
        assert {event["pid"] for event in world.seen("start")} == {gone.pid, other.pid}
        assert _effect_pids(world) == [other.pid, other.pid]


@pytest.mark.parametrize("variant", ["psycopg", "asyncpg", "sqlite"])
def test_worker_stopped_past_its_lease_rolls_back_when_woken(
    harness: Callable[..., Harness], variant: str
) -> None:
    words = {"mode": "stored", "lease": 0.5}
    with harness(variant, policy=words, long=True) as world:
        world.send("a")
        # On SQLite a handler holds the write lock: stopped there it would stop everybody.
        trip = Trip("Keep", "before", "stop")
        sleeper = world.start(trip=trip)
        world.wait_for("tripped")
        _is_taken_over(world, sleeper.pid)


@pytest.mark.parametrize("variant", ["psycopg", "asyncpg"])
def test_long_handler_stopped_past_its_lease_rolls_back_when_woken(
    harness: Callable[..., Harness], variant: str
) -> None:
    with harness(variant, policy={"mode": "stored", "lease": 0.5}, long=True) as world:
        world.send("a")
        sleeper = world.start(behaviour={"a": "hang"})
        world.wait_for("hanging")
        sleeper.kill(signal.SIGSTOP)
        _is_taken_over(world, sleeper.pid)


@pytest.mark.parametrize("variant", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("mode", ["inline", "stored"])
def test_handler_stopped_past_the_idle_timeout_rolls_back_when_woken(
    harness: Callable[..., Harness], variant: str, mode: str
) -> None:
    words = {"policy": {"mode": mode, "timeout": 60}, "idle_seconds": IDLE_SECONDS}
    with harness(variant, visibility_seconds=1.0, **words) as world:
        world.send("a")
        sleeper = world.start(behaviour={"a": "hang"})
        world.wait_for("hanging")
        sleeper.kill(signal.SIGSTOP)
        _is_taken_over(world, sleeper.pid)


def _is_taken_over(world: Harness, sleeper: int) -> None:
    """Another worker handles it; then the first one wakes up, ends its handler, and nothing of that stays."""
    world.stopped = 1
    other = world.start()
    eventually(lambda: world.tables().effects, 60)
    world.open_gate()
    world.workers[0].kill(signal.SIGCONT)
    world.finish()
    assert _effect_pids(world) == [other.pid]
    assert sleeper != other.pid


def _effect_pids(world: Harness) -> list[int]:
    connection = world.look("SELECT pid FROM effects ORDER BY n")
    return [row[0] for row in connection]


def test_bug_without_a_fencing_token_both_effects_stand(harness: Callable[..., Harness]) -> None:
    with harness("psycopg", policy={"mode": "stored", "lease": 0.5}, long=True) as world:
        world.send("a")
        sleeper = world.start(behaviour={"a": "hang"}, plant="no fencing token")
        world.wait_for("hanging")
        sleeper.kill(signal.SIGSTOP)
        world.start()
        eventually(lambda: world.tables().effects, 60)
        world.open_gate()
        sleeper.kill(signal.SIGCONT)
        eventually(lambda: len(world.tables().effects) == 2)
        assert "I1: message 'a' of 's' for 'c' took effect 2 times" in world.violations(quiet=False)
