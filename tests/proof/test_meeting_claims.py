"""A person decides about what the guard left unfinished while another delivery of it comes: in whatever order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proof.schedules.explore import Choose, Schedule
from proof.schedules.flows import BY_NAME
from proof.schedules.world import World

STEPS = 9
"""More than a delivery takes to be buried."""


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    world = World(database_url)
    yield world
    world.close()


def ahead(who: int, moves: int) -> Choose:
    """One goes so many steps ahead, then the other as far as it can."""
    left = iter(range(moves))

    def choose(ready: list[int]) -> int:
        wanted = who if who in ready and next(left, None) is not None else 1 - who
        return wanted if wanted in ready else ready[0]

    return choose


@pytest.mark.parametrize(
    ("delivery", "decision"),
    [
        ("one inline", "redrive claims"),
        ("one in a batch", "redrive claims"),
        ("one received", "redrive claims"),
        ("one received", "discard claims"),
        ("one conflict received", "redrive claims"),
    ],
)
def test_a_grave_never_contradicts_its_ledger_row(world: World, delivery: str, decision: str) -> None:
    flows = [BY_NAME[delivery], BY_NAME[decision]]
    for who, most in ((0, STEPS), (1, 4)):
        for moves in range(most):
            schedule = Schedule(world, flows)
            assert schedule.run(ahead(who, moves)) == [], " ".join(schedule.trace)
