"""What was measured, for people (a table) and for programs (`bench.json`)."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.options import Options

COLUMNS = ("figure", "what", "value", "quartiles", "bar", "", "driver", "msg/s", "base")


def write(result: dict[str, Any], options: Options) -> None:
    """`bench.json`, and `bench.png` where matplotlib is installed."""
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "bench.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    (options.out / "bench.md").write_text(markdown(result))
    if options.plot and importlib.util.find_spec("matplotlib") is not None:
        from benchmarks.plot import draw

        draw(result, options.out / "bench.png")


def markdown(result: dict[str, Any]) -> str:
    """The same tables for a page of documentation."""
    text = ""
    for rows in (result["figures"], result["extra"]["checks"], result["extra"]["context"]):
        text += f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"
        for row in rows:
            text += "| " + " | ".join(_cells(row, {True: "yes", False: "**no**", None: ""})) + " |\n"
        text += "\n"
    return text


def show(result: dict[str, Any], options: Options) -> None:
    """Tables on the terminal: figures with their bars, then the rest."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    console.print(_table("Figures", result["figures"]))
    for title, kind in (
        ("Promises about batches and growth", "checks"),
        ("For context, without a bar", "context"),
    ):
        if result["extra"][kind]:
            console.print(_table(title, result["extra"][kind]))
    missed = [row["figure"] for row in result["figures"] if row["ok"] is False]
    wrong = [row["figure"] for row in _all(result) if row.get("verified") is False]
    if missed:
        console.print(f"[bold red]below the bar:[/bold red] {', '.join(missed)}")
    if wrong:
        console.print(f"[bold red]effects do not add up:[/bold red] {', '.join(wrong)}")
    for line, times in result["logged"].items():
        console.print(f"[yellow]logged {times} times:[/yellow] {line}", markup=True, highlight=False)
    console.print(f"{result['seconds']:g} s; {options.out / 'bench.json'}")


def _all(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [*result["figures"], *result["extra"]["checks"], *result["extra"]["context"]]


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("what", ratio=1)
    for name in ("value", "quartiles", "bar", ""):
        table.add_column(name, justify="right")
    table.add_column("driver")
    table.add_column("msg/s", justify="right")
    table.add_column("base", justify="right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


MARKS = {True: "[green]yes[/green]", False: "[bold red]NO[/bold red]", None: ""}


def _cells(row: dict[str, Any], marks: dict[bool | None, str] = MARKS) -> list[str]:
    spread, unit = row.get("spread"), {"times": "", "MB": " MB", "ms": " ms"}[row.get("unit", "times")]
    mark = marks[row["ok"]]
    bar = "" if row["bar"] is None else f"{'≤' if row.get('at_most') else '≥'} {row['bar']:g}"
    return [
        row["figure"],
        row.get("skipped") or row["what"] + (" (scaled down)" if row.get("scaled_down") else ""),
        "" if row["value"] is None else f"{row['value']:.2f}{unit}",
        f"{spread['q1']:.2f} … {spread['q3']:.2f}" if spread else "",
        bar,
        mark,
        row.get("driver", ""),
        f"{row['contender']['per_second']:,.0f}" if "contender" in row else "",
        f"{row['base']['per_second']:,.0f}" if "base" in row else "",
    ]
