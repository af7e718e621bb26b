"""Worker processes that are really killed, at the moments that matter most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.harness import Harness
from tests.crash.worker import Trip

VARIANTS = ("sqlite", "sqlite-async", "psycopg", "psycopg-async", "asyncpg")
MOMENTS = {
    "before the commit": ("inline", Trip("Commit", "before", "kill")),
    "between commit and ack": ("inline", Trip("Settle", "before", "kill")),
    "after store, before ack": ("stored", Trip("Settle", "before", "kill", receiver=True)),
    "before a stored message's commit": ("stored", Trip("Commit", "before", "kill")),
    "after a stored message's commit": ("stored", Trip("Settle", "before", "kill")),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_kill_leaves_one_effect_each(harness: Callable[..., Harness], variant: str, moment: str) -> None:
    mode, trip = MOMENTS[moment]
    with harness(variant, policy={"mode": mode}) as world:
        world.send("a", "b", duplicates=1)
        killed = world.start(trip=trip)
        assert killed.wait() == -9
        world.reap(killed)
        world.start()
        world.finish()


@pytest.mark.parametrize("variant", ["sqlite", "psycopg", "asyncpg"])
@pytest.mark.parametrize("mode", ["inline", "stored"])
@pytest.mark.parametrize("words", [{}, {"batch": 5}], ids=["one by one", "batch"])
def test_message_that_kills_its_process_ends_dead_as_a_crash_loop(
    harness: Callable[..., Harness], variant: str, mode: str, words: dict[str, Any]
) -> None:
    with harness(variant, policy={"mode": mode, **words}, behaviour={"poison": "kill"}) as world:
        world.send("a")
        world.send("poison", ending="dead")
        world.send("b", "c")
        killed = _work_until_quiet(world)
        world.finish()
        (grave,) = world.tables().dead
        assert (grave.reason, grave.attempts, killed) == ("crash loop", 4, 4)


def _work_until_quiet(world: Harness) -> int:
    """One worker after the other, each reaped by its parent; how many of them died."""
    for killed in range(12):
        worker = world.start()
        while worker.status is None:
            if world.is_quiet():
                return killed
            worker.ended.wait(0.02)
        assert worker.status == -9, worker.output
        world.reap(worker)
    raise AssertionError("processes die of it without end\n" + world.story())


@pytest.mark.parametrize("variant", ["sqlite", "psycopg"])
def test_death_is_noticed_by_its_lapsed_heartbeat_when_no_parent_tells(
    harness: Callable[..., Harness], variant: str
) -> None:
    words = {"mode": "stored", "crash_limit": 1}
    with harness(variant, policy=words, behaviour={"poison": "kill"}, lapse_seconds=1.5) as world:
        world.send("poison", ending="dead")
        assert world.start().wait() == -9
        world.start()
        world.finish()
        assert [grave.reason for grave in world.tables().dead] == ["crash loop"]
