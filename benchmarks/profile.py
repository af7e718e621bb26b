"""Where a message's time goes on the client, by function: `python -m benchmarks.profile [library]`.

Calls per message do not depend on how busy the machine is, so they tell whether a change to the hot
path helped where a clock can't. The times are those under the profiler: read them as shares. Only
asyncpg: there, everything but the heartbeat runs in the one thread that is profiled.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
from collections.abc import Callable
from pathlib import PurePath

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.comparison import unprotected
from benchmarks.contenders.base import Contender
from benchmarks.contenders.library import Library
from benchmarks.contenders.loop import WorkerLoop
from benchmarks.stage import Stage

MESSAGES = 2_000
ROWS = 40


async def profile(contender: Contender) -> pstats.Stats:
    """One warm slice under the profiler."""
    with Stage(None) as stage:
        await contender.open(stage)
        try:
            await contender.run(contender.load.make(300))
            messages = contender.load.make(MESSAGES)
            profiler = cProfile.Profile()
            profiler.enable()
            await contender.run(messages)
            profiler.disable()
        finally:
            await contender.close()
    return pstats.Stats(profiler)


def show(name: str, stats: pstats.Stats) -> None:
    """The functions that cost most, per message."""
    found = stats.stats  # type: ignore[attr-defined]
    table = Table("us", "calls", "with what it calls", "where", title=name, title_justify="left")
    rows = sorted(
        ((own, calls, whole, where) for where, (_, calls, own, whole, _) in found.items()), reverse=True
    )
    for own, calls, whole, (path, line, function) in rows[:ROWS]:
        place = "/".join(PurePath(path).parts[-2:])
        table.add_row(
            f"{1e6 * own / MESSAGES:.1f}",
            f"{calls / MESSAGES:.2f}",
            f"{1e6 * whole / MESSAGES:.1f}",
            f"{place}:{line} {function}" if line else function,
        )
    Console(width=120).print(table)
    calls = sum(calls for _, (_, calls, _, _, _) in found.items())
    print(f"{name}: {calls / MESSAGES:.0f} Python calls per message")


def main() -> None:
    """Profile the whole library, or only its loop, or unprotected code."""
    what = sys.argv[1] if len(sys.argv) > 1 else "library"
    contenders: dict[str, Callable[[], Contender]] = {
        "A": lambda: unprotected()("asyncpg"),
        "loop": lambda: WorkerLoop("asyncpg"),
        "library": lambda: Library("inline", "asyncpg"),
        "batch": lambda: Library("batch=100", "asyncpg", batch=100),
        "stored": lambda: Library("stored, batch=100", "asyncpg", mode="stored", batch=100),
        "group": lambda: Library("group", "asyncpg", durability="group"),
    }
    if what not in contenders:
        sys.exit(f"{what}: one of {', '.join(contenders)}")
    show(what, uvloop.run(profile(contenders[what]())))


if __name__ == "__main__":
    main()
