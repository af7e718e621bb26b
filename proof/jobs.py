"""Everything the proof does, in pieces that some processes share."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from typing import Any

from proof import model
from proof.bays import bay
from proof.crashes import FLOWS, SIBLINGS, VARIANTS, crash, crash_server, engine
from proof.model import Checked
from proof.schedules.explore import LEAST, Found, explore
from proof.schedules.flows import BY_NAME, Flow, pairs, small_pairs, triples
from proof.schedules.world import World
from proof.walking import walk
from tests.crash.catchers import CATCHERS, CAUGHT_ELSEWHERE
from tests.crash.cells import hasten
from tests.crash.grid import Bench
from tests.crash.scenarios import SCENARIOS

ENGINES = ("sqlite", "postgresql")
TOGETHER = 6
"""Combinations of flows that one job explores."""
Job = tuple[str, dict[str, Any]]


def quiet() -> None:
    """In every process: flows that are broken on purpose have much to say."""
    logging.getLogger("oncebox").setLevel(logging.CRITICAL)


def perform(job: Job) -> tuple[Any, float]:
    """One piece; its result, and the seconds it took."""
    quiet()
    name, words = job
    began = time.monotonic()
    return PIECES[name](**words), time.monotonic() - began


def interleave(name: str, combinations: list[list[str]], seed: str, most: int) -> list[tuple[str, Found]]:
    """Some combinations of flows on one engine."""
    world = World(bay().emptied(name))
    try:
        return [
            (name, explore(world, [BY_NAME[flow] for flow in flows], seed, most)) for flows in combinations
        ]
    finally:
        world.close()


def check_model(name: str, changes: dict[str, str]) -> tuple[str, Checked]:
    """The model, or the model without one of its guards."""
    return name, model.check(changes)


def catch(bug: str) -> tuple[str, str]:
    """Where a planted bug shows; nothing when one of its catchers did not notice."""
    hasten()
    shown = ""
    for catcher in CATCHERS:
        if catcher.bug != bug:
            continue
        place = bay()
        bench = Bench(place.url(engine(catcher.variant)), catcher.variant, place.folder, place.nursery)
        try:
            if not (shown := bench.catches(catcher)):
                return bug, ""
        finally:
            bench.close()
    if bug in CAUGHT_ELSEWHERE:
        node = CAUGHT_ELSEWHERE[bug]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", node],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            print(done.stdout[-3000:], file=sys.stderr)  # why nobody noticed
            return bug, ""
        shown = node.rpartition("::")[2]
    return bug, shown


def whole(seed: str) -> list[Job]:
    """All of it; last what can be left out."""
    jobs: list[Job] = [("model", {"name": "", "changes": {}})]
    jobs += [("model", {"name": name, "changes": changes}) for name, changes in model.GUARDS.items()]
    jobs += [("walk", {"engine": name, "seed": seed, "examples": 300}) for name in ENGINES]
    jobs += _interleavings([*pairs(), *small_pairs()], seed, LEAST)
    jobs += _bugs()
    jobs += [("server", {"flow": flow, "seed": seed}) for flow in FLOWS]
    jobs += _interleavings(triples(), seed, LEAST)
    first = [variant for variant in VARIANTS if variant not in SIBLINGS]
    jobs += [
        ("crash", {"variant": variant, "flow": flow, "seed": seed})
        for variant in [*first, *SIBLINGS]
        for flow in FLOWS
    ]
    return sorted(jobs, key=can_be_left_out)


def can_be_left_out(job: Job) -> bool:
    """Where time is short: three flows at once, and drivers on whose engine another takes the same steps."""
    words = job[1]
    threes = any(len(flows) > 2 for flows in words.get("combinations", ()))
    return threes or words.get("variant") in SIBLINGS


def sample(seed: str) -> list[Job]:
    """A little of everything, for `make test`."""
    small = model.SMALL
    jobs: list[Job] = [("model", {"name": "", "changes": small})]
    jobs += [
        ("model", {"name": name, "changes": {**small, **changes}}) for name, changes in model.GUARDS.items()
    ]
    jobs += [("walk", {"engine": name, "seed": seed, "examples": 15}) for name in ENGINES]
    few = [scenario.name for scenario in SCENARIOS[::7]]
    jobs += [
        ("crash", {"variant": variant, "flow": flow, "seed": seed, "share": 10})
        for variant in ("sqlite", "asyncpg")
        for flow in few
    ]
    return jobs + _interleavings([*pairs()[::4], *triples()], seed, 6)


def _interleavings(combinations: list[tuple[Flow, ...]], seed: str, most: int) -> list[Job]:
    named = [[flow.name for flow in flows] for flows in combinations]
    return [
        ("interleave", {"name": name, "combinations": named[at : at + TOGETHER], "seed": seed, "most": most})
        for name in reversed(ENGINES)
        for at in range(0, len(named), TOGETHER)
    ]


def _bugs() -> list[Job]:
    return [("catch", {"bug": bug}) for bug in dict.fromkeys([*(c.bug for c in CATCHERS), *CAUGHT_ELSEWHERE])]


PIECES: dict[str, Any] = {
    "crash": crash,
    "server": crash_server,
    "interleave": interleave,
    "model": check_model,
    "walk": walk,
    "catch": catch,
}
