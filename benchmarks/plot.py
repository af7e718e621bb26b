"""The picture: every ratio beside its bar, and the rates behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

REACHED, MISSED, PLAIN = "#2a7f62", "#c0392b", "#5b7a99"


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the PNG: ratios on the left, messages per second on the right."""
    rows = [row for row in result["figures"] if row["value"] is not None and row["unit"] == "times"]
    rows = [row for row in rows if not row["at_most"]]
    if not rows:
        return
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(13, 1.6 + 0.36 * len(rows)), sharey=True, gridspec_kw={"width_ratios": [3, 2]}
    )
    places = range(len(rows))
    _ratios(left, rows, places)
    _rates(right, rows, places)
    left.set_yticks(list(places), [row["figure"] for row in rows])
    left.invert_yaxis()
    figure.suptitle(_title(result), fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _ratios(axes: Any, rows: list[dict[str, Any]], places: range) -> None:
    colours = [{True: REACHED, False: MISSED}.get(row["ok"], PLAIN) for row in rows]
    values = [row["value"] for row in rows]
    below = [max(0.0, row["value"] - row["spread"]["q1"]) for row in rows]
    above = [max(0.0, row["spread"]["q3"] - row["value"]) for row in rows]
    axes.barh(
        places, values, color=colours, height=0.6, xerr=(below, above), error_kw={"lw": 1, "alpha": 0.6}
    )
    for place, row in zip(places, rows, strict=True):
        axes.plot([row["bar"]] * 2, [place - 0.42, place + 0.42], color="black", lw=2)
        axes.annotate(
            f"{row['value']:.2f}", (row["value"], place), (6, -3), textcoords="offset points", fontsize=8
        )
    axes.axvline(1, color="grey", lw=0.8, ls="--")
    axes.set_xscale("log")
    axes.set_xlabel("times the base's rate, median and quartiles; black: the bar")


def _rates(axes: Any, rows: list[dict[str, Any]], places: range) -> None:
    axes.barh([p - 0.2 for p in places], [r["contender"]["per_second"] for r in rows], 0.36, color=PLAIN,
              label="oncebox")  # fmt: skip
    axes.barh(
        [p + 0.2 for p in places],
        [r["base"]["per_second"] for r in rows],
        0.36,
        color="#c9ccd1",
        label="base",
    )
    axes.set_xscale("log")
    axes.set_xlabel("messages per second on this machine (only a feel)")
    axes.legend(fontsize=8, loc="lower right")


def _title(result: dict[str, Any]) -> str:
    about = result["machine"]
    size = "QUICK run" if result["quick"] else "full run"
    return (
        f"oncebox, {size}: PostgreSQL {result['server']['server_version']}, Python {about['python']}, "
        f"{about['cores']} cores, load {about['load_at_start'][0]} at start"
    )
