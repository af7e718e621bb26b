"""Every crash point: every flow, before and after every one of its steps, with every kind of fault.

Then two faults, the second in the recovery from the first; and the death of the server itself.
"""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from proof.bays import bay
from tests.crash.cells import hasten
from tests.crash.faults import HANGS_SECONDS, Fault, Steps
from tests.crash.grid import Bench
from tests.crash.runs import Run
from tests.crash.scenarios import BY_NAME, SCENARIOS, Scenario

VARIANTS = ("sqlite", "sqlite-async", "psycopg", "psycopg-async", "asyncpg")
WHATS = ("kill", "error", "conflict", "busy", "cut", "away", "cancel")
SECOND = ("error", "cut", "away")
SECOND_STEPS = 12
PAIRS = 5
SERVER_KILLS = 1
SIBLINGS = ("asyncpg", "sqlite-async", "psycopg-async")
"""Those on whose engine another takes the same steps; tried last."""
PINNED = Path("tests/crash/traces.txt")


class Broken(msgspec.Struct):
    """One flow on one driver."""

    variant: str
    flow: str
    cells: list[str]
    """Flow, step and fault of what was tried."""
    count: int = 0
    """All cells there are."""
    tried: int = 0
    pairs: int = 0
    servers: int = 0
    violations: list[str] = []


def engine(variant: str) -> str:
    return "sqlite" if variant.startswith("sqlite") else "postgresql"


def crash(variant: str, flow: str, seed: str, share: int = 1) -> Broken:
    """All cells of one flow on one driver (or one of so many of them), and some pairs of faults."""
    hasten()
    scenario, place = BY_NAME[flow], bay()
    chance = random.Random(f"{seed} {variant} {flow}")
    bench = Bench(place.emptied(engine(variant)), variant, place.folder, place.nursery)
    try:
        faults = bench.faults(bench.trace(scenario), *WHATS)
        broken = Broken(variant, flow, [], len(faults))
        for fault in chance.sample(faults, max(1, len(faults) // share)):
            broken.tried += 1
            broken.cells.append(f"{flow}: {fault}")
            _note(broken, str(fault), bench.break_at(scenario, fault))
        for _ in range(PAIRS // min(share, PAIRS)):
            first, second = chance.choice(faults), _second(variant, chance)
            broken.pairs += 1
            _note(broken, f"{first}, then {second}", _break_twice(bench, scenario, first, second))
    finally:
        bench.close()
    return broken


def _note(broken: Broken, fault: str, found: list[str]) -> None:
    if found:
        broken.violations.append(f"{broken.variant}, {broken.flow}, {fault}: {'; '.join(found)}")


def _second(variant: str, chance: random.Random) -> Fault:
    whats = [what for what in SECOND if what != "cut" or engine(variant) != "sqlite"]
    return Fault(chance.randint(1, SECOND_STEPS), "before", chance.choice(whats))


def _break_twice(bench: Bench, scenario: Scenario, first: Fault, second: Fault) -> list[str]:
    run = Run(bench, scenario)
    run.fault = first
    run.prepare()
    if first.what == "kill":
        run.attempt_in_child(first)
    else:
        run.attempt(Steps(first, seconds=HANGS_SECONDS))
    run.fault = second if second.what == "error" else run.fault
    run.recover_badly(Steps(second, seconds=HANGS_SECONDS, statements=True))
    run.finish()
    return run.violations()


def crash_server(flow: str, seed: str, count: int = SERVER_KILLS) -> Broken:
    """The database server killed at some of the flow's steps."""
    hasten()
    scenario, place = BY_NAME[flow], bay()
    chance = random.Random(f"{seed} server {flow}")
    bench = Bench(place.doomed(), "psycopg", place.folder, place.nursery)
    try:
        faults = bench.faults(bench.trace(scenario), "server")
        broken = Broken("psycopg", flow, [])
        for fault in chance.sample(faults, min(count, len(faults))):
            broken.servers += 1
            _note(broken, str(fault), _kill_server(bench, scenario, fault))
    finally:
        bench.close()
    return broken


def _kill_server(bench: Bench, scenario: Scenario, fault: Fault) -> list[str]:
    def crash() -> None:
        bay().victim.kill9()
        bay().victim.start()
        bench.close()
        bench.connect()

    run = Run(bench, scenario)
    run.fault = fault
    # Its last marker may not have been on disk.
    run.forgotten += 1
    run.prepare()
    steps = Steps(fault, seconds=20)
    steps.crash_server = crash
    run.attempt(steps)
    run.finish()
    return run.violations()


def pinned() -> dict[tuple[str, str], int]:
    """The cells that were counted when the flows' steps were last looked at."""
    lines = [line.split(" | ") for line in PINNED.read_text().splitlines()]
    return {(variant, flow): int(count) for variant, flow, count, _ in lines}


FLOWS = tuple(scenario.name for scenario in SCENARIOS)
