"""What the proof found: as a table for people, as JSON for machines."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import msgspec

from proof.crashes import Broken, engine, pinned
from proof.model import Checked
from proof.schedules.explore import LEAST, Found

REPORT = Path("reports/proof.json")
CELLS_LEAST = 400
INTERLEAVINGS_LEAST = 20_000


class Report(msgspec.Struct, kw_only=True):
    """What `reports/proof.json` holds."""

    seed: str
    flows: list[str]
    crash_points: dict[str, int] = {}
    """Distinct flow, step and fault that were tried, by engine."""
    crash_runs: int = 0
    """On all drivers, every cell by itself."""
    crash_cells: int = 0
    """As many as there are on all drivers."""
    crash_pairs: int = 0
    server_kills: int = 0
    interleavings: int = 0
    interleavings_by_engine: dict[str, int] = {}
    pairs: int = 0
    """Pairs of flows that can meet, on each engine."""
    complete_pairs: int = 0
    """Those of them, by engine, of which every order there is was tried."""
    least_per_pair: int = 0
    """The fewest orders of any other pair."""
    waits: int = 0
    """Interleavings in which somebody waited for a lock."""
    model_states: int = 0
    guards: dict[str, str] = {}
    """Each guard of the model taken away: what TLC then finds violated."""
    properties: dict[str, int] = {}
    """Steps that the state machines took, by engine."""
    planted: int = 0
    caught: int = 0
    bugs: dict[str, str] = {}
    """Each planted bug, and where it showed."""
    left_out: int = 0
    """Pieces for which there was no time: three flows at once, drivers whose sibling takes the same steps."""
    seconds: float = 0.0
    seconds_by_part: dict[str, float] = {}
    """What each kind of piece took, added up over the processes that share them."""
    violations: list[str] = []


def add_crashes(report: Report, found: list[Broken], *, whole: bool) -> None:
    """Count the cells; a flow whose count is not the pinned one has changed unseen."""
    cells: dict[str, set[str]] = defaultdict(set)
    known = pinned()
    report.crash_cells = sum(known.values())
    for broken in found:
        report.violations += broken.violations
        report.crash_runs += broken.tried
        report.crash_pairs += broken.pairs
        report.server_kills += broken.servers
        if not broken.cells:
            continue
        cells[engine(broken.variant)].update(broken.cells)
        if known.get((broken.variant, broken.flow)) != broken.count:
            report.violations.append(
                f"{broken.variant}, {broken.flow}: {broken.count} cells, and another number is pinned"
            )
    report.crash_points = {name: len(those) for name, those in sorted(cells.items())}
    if whole:
        for name, count in report.crash_points.items():
            if count < CELLS_LEAST:
                report.violations.append(f"{name}: {count} crash points; at least {CELLS_LEAST} are wanted")


def add_schedules(report: Report, found: list[tuple[str, Found]], *, whole: bool) -> None:
    """Count the interleavings, and what is the least of a pair."""
    counts: Counter[str] = Counter()
    for name, each in found:
        counts[name] += each.distinct
        report.waits += each.waits
        report.violations += [f"{name}, schedule {text}" for text in each.violations]
    twos = [each for _, each in found if len(each.flows) == 2]
    pairs = [each for each in twos if not each.complete]
    report.interleavings = counts.total()
    report.interleavings_by_engine = dict(counts)
    report.pairs = len({tuple(each.flows) for each in twos})
    report.complete_pairs = len(twos) - len(pairs)
    report.least_per_pair = min((each.distinct for each in pairs), default=0)
    if whole and report.interleavings < INTERLEAVINGS_LEAST:
        report.violations.append(f"only {report.interleavings} interleavings")
    if whole and report.least_per_pair < LEAST:
        short = ["+".join(each.flows) for each in pairs if each.distinct < LEAST]
        report.violations.append(f"fewer than {LEAST} interleavings of: {', '.join(short)}")


def add_model(report: Report, found: dict[str, Checked]) -> None:
    """The whole model holds, and without any one of its guards it does not."""
    for name, checked in found.items():
        if not name:
            report.model_states = checked.states
            if checked.violated:
                report.violations.append(f"the model violates {checked.violated}")
        elif checked.violated:
            report.guards[name] = f"{checked.violated} violated after {checked.trace - 1} steps"
        else:
            report.violations.append(f"the model holds with {name}: that guard shows nothing")


def add_planted(report: Report, caught: dict[str, str]) -> None:
    """Every bug must have shown."""
    report.bugs = caught
    report.planted = len(caught)
    report.caught = sum(bool(where) for where in caught.values())
    report.violations += [f"nobody noticed: {bug}" for bug, where in caught.items() if not where]


def write(report: Report) -> None:
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def table(report: Report) -> str:
    """One line per kind of proof."""
    crash = ", ".join(f"{count:,} on {name}" for name, count in report.crash_points.items())
    schedules = ", ".join(f"{count:,} on {name}" for name, count in report.interleavings_by_engine.items())
    rows = [
        ("flows", f"{len(report.flows)}"),
        ("crash points", crash),
        ("", f"{report.crash_runs:,} of {report.crash_cells:,} cells on all drivers"),
        ("", f"{report.crash_pairs:,} with a second fault in the recovery"),
        ("", f"{report.server_kills} with the server killed; {report.left_out} pieces left out for want of time"),
        ("interleavings", f"{report.interleavings:,}: {schedules}"),
        ("", f"{report.pairs} pairs of flows, each in at least {report.least_per_pair} orders, or in all there are"),
        ("", f"in {report.waits:,} of them somebody waited for a lock"),
        ("properties", ", ".join(f"{count:,} steps on {name}" for name, count in report.properties.items())),
        ("model states", f"{report.model_states:,}"),
        *(("", f"{guard}: {what}") for guard, what in report.guards.items()),
        ("planted bugs", f"{report.planted}, caught {report.caught}"),
        *(("", f"{bug}: {where[:110]}") for bug, where in report.bugs.items()),
        ("seconds", f"{report.seconds:.0f}"),
        ("", ", ".join(f"{part} {seconds:.0f}" for part, seconds in report.seconds_by_part.items())),
        ("seed", report.seed),
        ("violations", f"{len(report.violations)}"),
        *(("", text[:1500]) for text in report.violations[:20]),
    ]  # fmt: skip
    return "\n".join(f"{name:<14} {text}" for name, text in rows)
