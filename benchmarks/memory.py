"""A worker's memory over many messages, in a process of its own: `python -m benchmarks.memory URL COUNT SECONDS`."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import Any

import psutil

from benchmarks.contenders.library import Library
from benchmarks.load import Load

CHUNK = 5_000


class _Place:
    """A database that is there already."""

    def __init__(self, url: str) -> None:
        self.url = url

    def reset(self) -> None: ...

    def balance(self) -> int:
        return 0

    def is_queue_empty(self) -> bool:
        return True

    def server_cpu(self) -> float | None:
        return None


async def measure(url: str, count: int, seconds: float) -> dict[str, Any]:
    """Resident memory after the first chunk, along the way, and at the end."""
    process = psutil.Process()
    worker = Library("inline, batch=100, set-based", "psycopg", 1, Load(), batch=100, set_based=True)
    await worker.open(_Place(url))
    samples: list[tuple[int, float]] = []
    done, ends = 0, time.monotonic() + seconds
    try:
        while done < count and (time.monotonic() < ends or len(samples) < 3):
            await worker.run(worker.load.fresh(min(CHUNK, count - done)))
            done += min(CHUNK, count - done)
            gc.collect()
            samples.append((done, process.memory_info().rss / 1e6))
    finally:
        await worker.close()
    first, last = samples[0][1], samples[-1][1]
    step = max(1, len(samples) // 20)
    return {
        "value": round(last - first, 2),
        "messages": done,
        "first_mb": round(first, 1),
        "last_mb": round(last, 1),
        "highest_mb": round(max(mb for _, mb in samples), 1),
        "samples": [(n, round(mb, 1)) for n, mb in samples[::step]],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))))
