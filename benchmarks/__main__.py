"""`make bench`: measure, show a table, write `bench.json` and `bench.png`."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from typing import Any

from benchmarks import machine, report
from benchmarks.logs import listen
from benchmarks.options import Options, parse
from benchmarks.plan import names
from benchmarks.session import Session
from benchmarks.stage import Stage


async def measure(options: Options) -> dict[str, Any]:
    """Everything asked for, as one report."""
    heard = listen()
    started = time.monotonic()
    about = machine.describe()
    with Stage(options.database) as stage:
        session = Session(stage, options)
        await session.run()
        return {
            "quick": options.quick,
            "seconds": round(time.monotonic() - started, 1),
            "machine": about,
            "server": {**stage.settings(), "private": options.database is None},
            "figures": session.figures,
            "extra": session.extra,
            "logged": dict(heard.counts.most_common(20)),
        }


def main() -> None:
    """A benchmark is not a test: a figure that misses its bar is shown, and the exit code is 0."""
    options = parse()
    unknown = options.only - set(names())
    if unknown:
        sys.exit(f"nothing is called {', '.join(sorted(unknown))}; see --list")
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        result = uvloop.run(measure(options))
    else:
        result = asyncio.run(measure(options))
    report.write(result, options)
    report.show(result, options)


main()
