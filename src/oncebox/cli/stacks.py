"""What a process that seems to stand still is doing: on SIGUSR1, where every thread and every task is, on
standard error. Frames only, no values: nothing of a payload or a connection string is in them."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

DEPTH_MAX = 50


def tell_on_signal() -> None:
    """From now on, SIGUSR1 has the process tell; it goes on with its work. Called on the loop of interest."""
    if not hasattr(signal, "SIGUSR1"):
        return  # a system without it
    loop = asyncio.get_running_loop()
    signal.signal(signal.SIGUSR1, lambda number, frame: tell(loop))


def tell(loop: asyncio.AbstractEventLoop) -> None:
    """Threads first, which needs nobody's cooperation; then the tasks of `loop`."""
    try:
        faulthandler.dump_traceback(sys.stderr)
        lines = [line for task in asyncio.all_tasks(loop) for line in _told(task)]
        sys.stderr.write("".join(lines))
        sys.stderr.flush()
    except (OSError, ValueError, RuntimeError):
        return  # nobody reads it, or the tasks change while they are listed: there is another signal


def _told(task: asyncio.Task[Any]) -> Iterator[str]:
    yield f"Task {task.get_name()}:\n"
    awaited: Any = task.get_coro()
    for _ in range(DEPTH_MAX):
        frame: FrameType | None = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            if awaited is not None:
                yield f"  waits for {type(awaited).__name__}\n"
            return
        yield from traceback.format_list(
            [traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)]
        )
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
