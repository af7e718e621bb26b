"""How much to measure, and where."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """One run's bounds. `quick` keeps it under three minutes, else it is under fifteen."""

    quick: bool
    database: str | None
    only: frozenset[str]
    out: Path
    rounds: int
    slice_seconds: float
    plot: bool

    def wants(self, name: str) -> bool:
        """Whether this figure or extra is to be measured."""
        return not self.only or name in self.only


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line, and QUICK and DATABASE from the environment."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time oncebox against unprotected code, hand-written flows and peers, in pairs.",
    )
    parser.add_argument("--only", default="", help="figures or extras to run, by name, with commas between")
    parser.add_argument(
        "--out", type=Path, default=Path("reports"), help="folder for bench.json and bench.png"
    )
    parser.add_argument("--rounds", type=int, default=0, help="pairs per comparison (QUICK: 7, else 15)")
    parser.add_argument("--slice", type=float, default=0.0, help="seconds per slice (QUICK: 0.15, else 0.2)")
    parser.add_argument("--no-plot", action="store_true", help="write no picture")
    parser.add_argument("--list", action="store_true", help="list what can be measured")
    given = parser.parse_args(arguments)
    quick = os.environ.get("QUICK", "") not in ("", "0")
    if given.list:
        from benchmarks.plan import names

        print("\n".join(names()))
        raise SystemExit(0)
    return Options(
        quick=quick,
        database=os.environ.get("DATABASE") or None,
        only=frozenset(filter(None, given.only.split(","))),
        out=given.out,
        rounds=given.rounds or (7 if quick else 15),
        slice_seconds=given.slice or (0.15 if quick else 0.2),
        plot=not given.no_plot,
    )
