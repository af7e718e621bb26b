"""The figures that are no ratio of two rates: growth, memory, import time."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.options import Options
from benchmarks.pairs import spread
from benchmarks.stage import Stage

IMPORTS = {"import oncebox": "import oncebox", "App and Inbox": "from oncebox import App, Inbox"}


def import_time(options: Options) -> dict[str, Any]:
    """Milliseconds over the bare interpreter, in turns; and what a service really imports."""
    turns = 9 if options.quick else 21
    _start("import oncebox")
    differences: dict[str, list[float]] = {name: [] for name in IMPORTS}
    bare: list[float] = []
    for _ in range(turns):
        bare.append(_start("pass"))
        for name, statement in IMPORTS.items():
            differences[name].append(_start(statement) - bare[-1])
    main = differences["import oncebox"]
    return {
        "value": round(statistics.median(main), 1),
        "spread": spread(main),
        "bare_ms": round(statistics.median(bare), 1),
        "app_and_inbox_ms": round(statistics.median(differences["App and Inbox"]), 1),
    }


def _start(statement: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return 1e3 * (time.perf_counter() - started)


async def memory(stage: Stage, options: Options, seconds: float) -> dict[str, Any]:
    """Growth of a worker process, in MB."""
    stage.reset()
    count = 50_000 if options.quick else 1_000_000
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.memory", stage.url, str(count), str(seconds),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError("the worker whose memory was watched ended with an error")
    result: dict[str, Any] = json.loads(out)
    result["verified"] = stage.balance() == result["messages"]
    result["scaled_down"] = result["messages"] < 1_000_000
    result["spread"] = None
    return result
