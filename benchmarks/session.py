"""One run: every comparison in turn, within the time there is, and what came of each."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console

from benchmarks import growth, measures, outgoing
from benchmarks.comparison import Comparison
from benchmarks.contenders import peer
from benchmarks.contenders.base import ContenderEnded
from benchmarks.contenders.sqlite import SqliteStage
from benchmarks.context import context
from benchmarks.options import Options
from benchmarks.pairs import Duel, Pace, duel
from benchmarks.plan import checks, figures
from benchmarks.stage import Stage, pgbench_binary

BUDGET_SECONDS = {True: 160.0, False: 865.0}
GROWTH_SECONDS = {True: 25.0, False: 200.0}
MEMORY_SECONDS = {True: 12.0, False: 120.0}
DUEL_SECONDS_MIN = 1.5

BARS = {
    "take_growth": ("taking 100 among many finished and waiting rows, against 10 k", 4.0, "times"),
    "memory_mb": ("growth of a worker over its messages", 20.0, "MB"),
    "import_ms": ("import oncebox, over the bare interpreter", 100.0, "ms"),
    "relay_latency_ms": ("commit to the broker's confirmation, light load, NOTIFY", 20.0, "ms"),
    "relay_vs_loop": ("relay against publish one, mark one; 100 keys", 5.0, "times"),
}
AT_LEAST = frozenset(("relay_vs_loop",))
"""Bars that are reached from below; the others must not be passed."""


class Session:
    """Collects figures and extras as they are measured."""

    def __init__(self, stage: Stage, options: Options) -> None:
        self.stage = stage
        self.options = options
        self.figures: list[dict[str, Any]] = []
        self.extra: dict[str, Any] = {"checks": [], "context": []}
        self._console = Console(stderr=True)
        self._started = time.monotonic()

    async def run(self) -> None:
        """Measure everything that is wanted."""
        work = [("figures", row) for row in figures()]
        work += [("checks", row) for row in checks()] + [("context", row) for row in context()]
        work = [(kind, row) for kind, row in work if self._wants(row)]
        await self._measure()
        left = sum(self._weight(kind, row) for kind, row in work)
        for kind, row in work:
            if kind == "context" and self._left() < DUEL_SECONDS_MIN:
                self.extra[kind].append(_skipped(row, "no time was left on this machine"))
                continue
            weight = self._weight(kind, row)
            share = self._left() * weight / max(left, 1e-9) / len(self._drivers(kind, row))
            left -= weight
            try:
                result = await self._compare(kind, row, max(DUEL_SECONDS_MIN, share))
            except ContenderEnded as ended:
                result = _skipped(row, str(ended))
            if kind == "figures":
                self.figures.append(result)
            else:
                self.extra[kind].append(result)
            self._say(result)
        self.extra["peers"] = peer.versions()
        self.extra["cpu"] = cpu([*self.figures, *self.extra["checks"], *self.extra["context"]])

    def _left(self) -> float:
        return BUDGET_SECONDS[self.options.quick] - (time.monotonic() - self._started)

    def _wants(self, row: Comparison) -> bool:
        return self.options.wants(row.name) and (
            row.quick or not self.options.quick or bool(self.options.only)
        )

    def _drivers(self, kind: str, row: Comparison) -> tuple[str, ...]:
        """Every driver where one is chosen; one where it is only for context, or quick."""
        return row.drivers[:1] if self.options.quick or kind == "context" else row.drivers

    def _weight(self, kind: str, row: Comparison) -> float:
        """Its part of the time: figures get twice as much as what is beside them."""
        return len(self._drivers(kind, row)) * row.slice_factor * (1 if kind == "context" else 2)

    async def _compare(self, kind: str, row: Comparison, seconds: float) -> dict[str, Any]:
        """Every driver that may serve; the best one's figure, the others beside it."""
        about: dict[str, Any] = {"figure": row.name, "what": row.what}
        if reason := _missing(row):
            return _skipped(row, reason)
        pace = Pace(self.options.rounds, self.options.slice_seconds * row.slice_factor, seconds)
        duels: list[Duel] = []
        for driver in self._drivers(kind, row):
            base, contender = row.base(driver), row.contender(driver)
            if row.place == "sqlite":
                with SqliteStage() as stage:
                    duels.append(await duel(stage, base, contender, pace))
            else:
                duels.append(await duel(self.stage, base, contender, pace))
        best = max(duels, key=lambda one: one.value)
        result = {**about, **best.as_json(), "bar": row.bar, "at_most": False, "unit": "times"}
        result["ok"] = None if row.bar is None else best.value >= row.bar
        if len(duels) > 1:
            result["other_drivers"] = [one.as_json() for one in duels if one is not best]
        return result

    async def _measure(self) -> None:
        if self.options.wants("import_ms"):
            self._add("import_ms", measures.import_time(self.options), "none")
        if self.options.wants("take_growth"):
            grown = await growth.growth(self.stage, self.options, GROWTH_SECONDS[self.options.quick])
            self._add("take_growth", grown.pop("take_growth"), "psycopg")
            waiting = {"figure": "take_waiting", "what": "taking 100 among many waiting rows, against 10 k"}
            judged = {"bar": 4.0, "at_most": True, "unit": "times", "driver": "psycopg"}
            judged["ok"] = grown["take_waiting"]["value"] <= 4.0
            self.extra["checks"].append(waiting | grown["take_waiting"] | judged)
            claims = {"figure": "claims_growth", "what": "inline among many ledger rows, against 10 k rows"}
            self.extra["context"].append(
                {**claims, **grown["claims"], "bar": None, "ok": None, "unit": "times"}
            )
        if self.options.wants("memory_mb"):
            seconds = MEMORY_SECONDS[self.options.quick]
            self._add("memory_mb", await measures.memory(self.stage, self.options, seconds), "psycopg")
        if self.options.wants("relay_latency_ms"):
            self._add("relay_latency_ms", await outgoing.latency(self.stage, self.options), "psycopg")
        if self.options.wants("relay_vs_loop"):
            self._add("relay_vs_loop", await outgoing.rate(self.stage, self.options), "psycopg")

    def _add(self, name: str, result: dict[str, Any], driver: str) -> None:
        what, bar, unit = BARS[name]
        row = {
            "figure": name,
            "what": what,
            **result,
            "bar": bar,
            "at_most": name not in AT_LEAST,
            "unit": unit,
            "driver": driver,
        }
        row["ok"] = row["value"] >= bar if name in AT_LEAST else row["value"] <= bar
        self.figures.append(row)
        self._say(row)

    def _say(self, row: dict[str, Any]) -> None:
        value = "skipped" if row["value"] is None else f"{row['value']:g}"
        bar = "" if row["bar"] is None else f" (bar {row['bar']:g})"
        self._console.print(
            f"[dim]{time.monotonic() - self._started:6.1f} s[/dim] {row['figure']}: {value}{bar}"
        )


def cpu(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """CPU per message of everything that ran in this process, once each."""
    words = ("name", "driver", "concurrency", "client_cpu_us", "server_cpu_us")
    sides = [row[side] for row in rows for side in ("base", "contender") if side in row]
    found = {
        tuple(side[word] for word in words[:3]): side for side in sides if side["client_cpu_us"] is not None
    }
    return [{word: side[word] for word in words} for side in found.values()]


def _skipped(row: Comparison, reason: str) -> dict[str, Any]:
    nothing = {"value": None, "ok": None, "spread": None}
    return {"figure": row.name, "what": row.what, **nothing, "bar": row.bar, "skipped": reason}


def _missing(row: Comparison) -> str | None:
    """Why this row can't be measured here."""
    if (row.name.startswith("vs_") and row.name.split("_")[1] in ("pgqueuer", "procrastinate", "dbos")) and (
        not peer.installed()
    ):
        return "not installed: make bench-peers"
    if row.name.startswith("pgbench_") and pgbench_binary() is None:
        return "pgbench was not found"
    return None
