"""The command `oncebox demo`: its options, its exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from oncebox.demo.place import Place, borrowed
from oncebox.demo.run import Watcher, last_words, run
from oncebox.demo.schedule import Schedule, plan
from oncebox.demo.screen import conclude, introduce, progress
from oncebox.demo.verdict import Report
from oncebox.errors import ConfigError, OnceboxError

MESSAGES_MAX = 400_000
"""With as many duplicates it stays within what the broker's queue holds."""
KILLS_MAX = 1000
FAILED = 1
NOT_RUN = 2
TERMINATED = 128 + signal.SIGTERM


def demo_command(
    messages: Annotated[
        int, typer.Option(min=1, max=MESSAGES_MAX, help="Payments to send.", show_default=True)
    ] = 2000,
    duplicates: Annotated[
        int, typer.Option(min=0, max=MESSAGES_MAX, help="How many of them the producer sends again.")
    ] = 200,
    kills: Annotated[
        int, typer.Option(min=0, max=KILLS_MAX, help="How often a worker process is killed (kill -9).")
    ] = 15,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same payments, duplicates and kill schedule again.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="postgresql://… or sqlite:///file. Works in a schema (or under a prefix) of its own, and "
            "removes it. Default: a temporary SQLite file.",
        ),
    ] = None,
    ack_first: Annotated[
        bool, typer.Option("--ack-first", help="Let the usual handler ack before its work, not after.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """See what kill -9 and duplicates do to payments, without oncebox and with it.

    Real worker processes take PaymentCaptured messages from a broker
    that redelivers, and are killed at random moments; twice, over the
    same schedule. Then the charges in the database are counted.

    Exits 1 if oncebox lost or doubled anything, 2 if the demo can't run.
    """
    schedule = plan(messages, duplicates, kills, random.randrange(100_000) if seed is None else seed)
    try:
        report = demonstrate(schedule, database, ack_first=ack_first, quiet=json_output)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--database") from None
    except OnceboxError as error:
        sys.stderr.write(f"oncebox demo: {error}\n")
        raise typer.Exit(NOT_RUN) from None
    except asyncio.CancelledError:
        raise typer.Exit(TERMINATED) from None
    if json_output:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    else:
        conclude(Console(), report)
    if not report.oncebox.clean:
        raise typer.Exit(FAILED)


def demonstrate(schedule: Schedule, url: str | None, *, ack_first: bool, quiet: bool) -> Report:
    """Both runs, with their progress on standard error; nothing is left of them."""
    console = Console(stderr=True)
    with (
        tempfile.TemporaryDirectory(prefix="oncebox-demo-", ignore_cleanup_errors=True) as folder,
        borrowed(url, Path(folder)) as place,
    ):
        if not quiet:
            introduce(console, schedule, place.database.dialect, ack_first=ack_first)
        with progress(console) as watcher:
            report = asyncio.run(_both(schedule, place, Path(folder), watcher, ack_first=ack_first))
        if not report.oncebox.clean:
            sys.stderr.write(last_words(Path(folder), "oncebox"))
        return report


async def _both(
    schedule: Schedule, place: Place, folder: Path, watcher: Watcher, *, ack_first: bool
) -> Report:
    _unwind_on_terminate()
    unprotected = await run("unprotected", schedule, place, folder, watcher, ack_first=ack_first)
    return Report(
        seed=schedule.seed,
        database=place.database.dialect,
        duplicates=len(schedule.order) - len(schedule.payments),
        unprotected=unprotected,
        oncebox=await run("oncebox", schedule, place, folder, watcher),
    )


def _unwind_on_terminate() -> None:
    """SIGTERM as Ctrl-C: workers are killed and tables dropped before the process ends."""
    task = asyncio.current_task()
    assert task is not None
    # Not on Windows, and not in a thread: there the workers still end, when their standard input does.
    with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
