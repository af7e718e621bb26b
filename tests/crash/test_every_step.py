"""Every flow, broken before and after every one of its steps, on every driver.

`traces.txt` pins the steps: a new one can't escape, because it changes a trace. When a flow is meant
to change, `ONCEBOX_PIN=1 pytest tests/crash/test_every_step.py` writes the file anew, and the diff
shows what changed. A sample of the cells is tried here, all of them by `make proof`.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncebox.core.steps import Step
from tests.crash.cells import hasten
from tests.crash.faults import Fault
from tests.crash.grid import Bench
from tests.crash.nursery import Nursery
from tests.crash.scenarios import SCENARIOS, Scenario

PINNED = Path(__file__).with_name("traces.txt")
VARIANTS = ("sqlite", "sqlite-async", "psycopg", "psycopg-async", "asyncpg")
SOFT = ("error", "conflict", "busy", "cut", "away", "cancel")
KILL_SHARE, SOFT_SHARE = 24, 24
"""Of every flow's cells one of so many is tried here; `make proof` tries all of them."""


@pytest.fixture(params=VARIANTS)
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    """A database on which the cells of one variant are run."""
    hasten(monkeypatch.setattr)
    variant: str = request.param
    url = request.getfixturevalue("sqlite_url" if variant.startswith("sqlite") else "recycled_pg_url")
    bench = Bench(url, variant, tmp_path, nursery)
    yield bench
    bench.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_step_can_be_broken(
    bench: Bench, scenario: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = bench.trace(scenario)
    kills, soft = bench.faults(kinds, "kill"), bench.faults(kinds, *SOFT)
    _check_trace(bench, scenario, kinds, len(kills) + len(soft))
    tried = [
        *(fault for fault in kills if _is_sampled(scenario, fault, KILL_SHARE)),
        *(fault for fault in soft if _is_sampled(scenario, fault, SOFT_SHARE)),
    ]
    stories = [story for fault in tried if (story := _break(bench, scenario, kinds, fault))]
    with capsys.disabled():
        print(f"\n{bench.variant}, {scenario.name}: {len(tried)} of {len(kills) + len(soft)} cells", end="")
    assert not stories, f"{len(stories)} of {len(tried)} cells:\n" + "\n".join(stories)


def _break(bench: Bench, scenario: Scenario, kinds: list[Step], fault: Fault) -> str:
    found = bench.break_at(scenario, fault)
    step = type(kinds[fault.step - 1]).__name__
    return f"{fault} ({step}):\n  " + "\n  ".join(found) if found else ""


def _is_sampled(scenario: Scenario, fault: Fault, share: int) -> bool:
    if os.environ.get("ONCEBOX_PIN"):
        return False
    return zlib.crc32(f"{scenario.name} {fault}".encode()) % share == 0


def _check_trace(bench: Bench, scenario: Scenario, kinds: list[Step], cells: int) -> None:
    """The steps and cells are those that were counted."""
    start = f"{bench.variant} | {scenario.name} | "
    line = f"{start}{cells} | {' '.join(type(step).__name__ for step in kinds)}"
    if os.environ.get("ONCEBOX_PIN"):
        _pin(start, line)
        return
    pinned = PINNED.read_text().splitlines() if PINNED.exists() else []
    assert line in pinned, f"the steps have changed (ONCEBOX_PIN=1 pins the new ones):\n{line}"


def _pin(start: str, line: str) -> None:
    with PINNED.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # several processes may pin at once
        file.seek(0)
        others = [other for other in file.read().splitlines() if not other.startswith(start)]
        file.truncate(0)
        file.write("\n".join(sorted([*others, line])) + "\n")


def test_every_flow_and_driver_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split(" | ") for line in PINNED.read_text().splitlines()]
    cells = Counter[str]()
    for variant, _, count, _ in lines:
        cells[variant] += int(count)
    assert len(lines) == len(VARIANTS) * len(SCENARIOS)
    assert {name for _, name, _, _ in lines} == {scenario.name for scenario in SCENARIOS}
    with capsys.disabled():
        print(f"\ncells: {sum(cells.values()):,} in all; {dict(cells)}", end="")
    assert min(cells.values()) >= 400


def test_drivers_of_one_engine_take_the_same_steps() -> None:
    lines = [line.split(" | ") for line in PINNED.read_text().splitlines()]
    traces = {(variant, name): trace for variant, name, _, trace in lines}
    for scenario in SCENARIOS:
        assert traces["sqlite", scenario.name] == traces["sqlite-async", scenario.name]
        assert traces["psycopg", scenario.name] == traces["psycopg-async", scenario.name]
        assert traces["psycopg", scenario.name] == traces["asyncpg", scenario.name]
