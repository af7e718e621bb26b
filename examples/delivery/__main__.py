"""`make demo-chain`: the parcel platform under kill -9, live, and a table at the end."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from examples.delivery.chain import Chain, Figures, Options

STAGES = {"stored": "scans taken", "moved": "parcels moved", "notified": "receivers told"}
SHOW_SECONDS = 0.2
LINE_SECONDS = 5.0


def main() -> int:
    """0: every scan led to one state change and one request. 1: something was lost or doubled."""
    options = _options()
    console = Console()
    database = "PostgreSQL" if options.database else "SQLite"
    on = f"{database} and {'RabbitMQ' if options.broker else 'an in-process broker'}"
    console.print(
        f"{options.scans} scans by webhook and broker, a fifth of them twice, through three services on {on}; "
        f"{options.kills} times a process is killed (kill -9). Seed {options.seed}.",
        highlight=False,
    )
    with tempfile.TemporaryDirectory(prefix="oncebox-delivery-") as folder:
        chain = Chain(options, Path(folder))
        figures = asyncio.run(_shown(chain, console))
        _conclude(console, figures)
        failed = bool(figures.lost or figures.doubled)
        if failed:
            console.print(chain.standing, highlight=False, markup=False)
            for log in sorted(Path(folder).glob("*.log")):
                console.print(
                    f"{log.stem}: {log.read_text(errors='replace')[-1500:]}", highlight=False, markup=False
                )
    return int(failed)


async def _shown(chain: Chain, console: Console) -> Figures:
    running = asyncio.create_task(chain.run())
    show = _bars if console.is_terminal else _lines
    await show(chain, console, running)
    return await running


async def _bars(chain: Chain, console: Console, running: asyncio.Task[Figures]) -> None:
    columns = (
        TextColumn("{task.description:<15}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("[red]{task.fields[killed]:>3} killed"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, expand=True) as progress:
        bars = {
            name: progress.add_task(text, total=chain.options.scans, killed=0)
            for name, text in STAGES.items()
        }
        while not running.done():
            for name, bar in bars.items():
                progress.update(bar, completed=getattr(chain.figures, name), killed=chain.figures.kills)
            await asyncio.wait([running], timeout=SHOW_SECONDS)
        for name, bar in bars.items():
            progress.update(bar, completed=getattr(chain.figures, name), killed=chain.figures.kills)


async def _lines(chain: Chain, console: Console, running: asyncio.Task[Figures]) -> None:
    while not running.done():
        await asyncio.wait([running], timeout=LINE_SECONDS)
        said = ", ".join(f"{getattr(chain.figures, name)} {text}" for name, text in STAGES.items())
        console.print(f"{said}, {chain.figures.kills} killed", highlight=False)


def _conclude(console: Console, figures: Figures) -> None:
    table = Table(show_header=False)
    for name, value in (
        ("scans", f"{figures.scans:,}"),
        ("deliveries that senders made", f"{figures.sent:,}"),
        ("processes killed", f"{figures.kills:,}"),
        ("state changes", f"{figures.moved:,}"),
        ("calls that the provider got", f"{figures.calls:,}"),
        ("requests (one idempotency key each)", f"{figures.notified:,}"),
        ("seconds", f"{figures.seconds:.1f}"),
    ):
        table.add_row(name, value)
    for name, count in (("lost", figures.lost), ("doubled", figures.doubled)):
        table.add_row(name, Text(f"{count:,}", style="bold red" if count else "bold green"))
    console.print(table)
    good = not figures.lost and not figures.doubled
    console.print(
        "Every scan led to one state change and one notification request."
        if good
        else "Something was lost or doubled: that is a bug of oncebox. The processes' last words follow.",
        highlight=False,
    )


def _options() -> Options:
    parser = argparse.ArgumentParser(prog="python -m examples.delivery", description=__doc__)
    parser.add_argument("--scans", type=int, default=200)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--database", default=os.environ.get("DELIVERY_DATABASE", ""),
        help="postgresql://… of a server where three databases can be made (DELIVERY_DATABASE)",
    )  # fmt: skip
    parser.add_argument(
        "--broker", default=os.environ.get("DELIVERY_AMQP", ""), help="amqp://… (DELIVERY_AMQP)"
    )
    words = parser.parse_args()
    if words.scans < 1 or words.kills < 0:
        parser.error("--scans is at least 1, --kills is not negative")
    if words.database and not words.database.startswith("postgresql://"):
        parser.error("--database is postgresql://…; without it, three SQLite files are made")
    if words.broker and not words.broker.startswith("amqp"):
        parser.error("--broker is amqp://…; without it, a broker runs in this process")
    return Options(
        scans=words.scans, kills=words.kills, seed=words.seed, database=words.database, broker=words.broker
    )


if __name__ == "__main__":
    sys.exit(main())
