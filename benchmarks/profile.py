"""Where a message's time goes on the client, by function: `python -m benchmarks.profile [library]`; and how much is
waiting for which reply: `python -m benchmarks.profile timeline`.

Calls per message do not depend on how busy the machine is, so they tell whether a change to the hot
path helped where a clock can't. The times are those under the profiler: read them as shares. Only
asyncpg: there, everything but the heartbeat runs in the one thread that is profiled.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import PurePath
from typing import Any
from unittest import mock

import psycopg
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.comparison import unprotected
from benchmarks.contenders.base import Contender
from benchmarks.contenders.library import Library
from benchmarks.contenders.loop import WorkerLoop
from benchmarks.stage import Stage
from oncebox.drivers.psycopg import PsycopgSession

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


class Timeline:
    """Notes when a blocking psycopg connection is waited for: `commit` is A's COMMIT, or oncebox's closing message,
    which carries the next claim."""

    def __init__(self) -> None:
        self.waits: list[tuple[str, int, int]] = []

    def noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, and a note of each call."""

        def noted(*given: Any, **named: Any) -> Any:
            started = time.perf_counter_ns()
            try:
                return function(*given, **named)
            finally:
                self.waits.append((name, started, time.perf_counter_ns()))

        return noted

    def medians(self) -> dict[str, float]:
        """Microseconds of each wait, and of what lies between two."""
        found: dict[str, list[int]] = {}
        for (name, started, ended), (following, after, _) in pairwise(self.waits):
            found.setdefault(name, []).append(ended - started)
            found.setdefault(f"after {name}, before {following}", []).append(after - ended)
        common = {name: times for name, times in found.items() if len(times) > len(self.waits) / 10}
        return {name: statistics.median(times) / 1000 for name, times in common.items()}


async def timeline() -> None:
    """A and inline in turns, c=1, on psycopg; medians, because the disk makes means a matter of luck."""
    notes = Timeline()
    execute, commit = psycopg.Connection.execute, psycopg.Connection.commit
    patches = [
        mock.patch.object(psycopg.Connection, "execute", notes.noting("handler's statement", execute)),
        mock.patch.object(psycopg.Connection, "commit", notes.noting("commit", commit)),
        mock.patch.object(PsycopgSession, "_script", notes.noting("commit", PsycopgSession._script)),
    ]
    makes: dict[str, Callable[[], Contender]] = {
        "A": lambda: unprotected()("psycopg"),
        "inline": lambda: Library("inline", "psycopg"),
    }
    table = Table("run", "contender", "us", "what", title="c=1, psycopg", title_justify="left")
    with Stage(None) as stage, ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        for run in range(3):
            for name, make in makes.items():
                contender = make()
                await contender.open(stage)
                try:
                    await contender.run(contender.load.make(300))
                    notes.waits.clear()
                    await contender.run(contender.load.make(MESSAGES))
                finally:
                    await contender.close()
                for what, micros in notes.medians().items():
                    table.add_row(str(run + 1), name, f"{micros:.0f}", what)
    Console(width=120).print(table)


def main() -> None:
    """Profile the whole library, or only its loop, or unprotected code."""
    what = sys.argv[1] if len(sys.argv) > 1 else "library"
    if what == "timeline":
        asyncio.run(timeline())
        return
    contenders: dict[str, Callable[[], Contender]] = {
        "A": lambda: unprotected()("asyncpg"),
        "loop": lambda: WorkerLoop("asyncpg"),
        "library": lambda: Library("inline", "asyncpg"),
        "batch": lambda: Library("batch=100", "asyncpg", batch=100),
        "stored": lambda: Library("stored, batch=100", "asyncpg", mode="stored", batch=100),
        "group": lambda: Library("group", "asyncpg", durability="group"),
    }
    if what not in contenders:
        sys.exit(f"{what}: one of {', '.join(contenders)}, timeline")
    show(what, uvloop.run(profile(contenders[what]())))


if __name__ == "__main__":
    main()
