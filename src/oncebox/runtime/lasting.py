"""What runs for as long as its app does. An end that nobody asked for is told, and it begins again: a source
that is quietly no longer received from looks just like a quiet source."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from oncebox.runtime.workers import pause_seconds

log = logging.getLogger("oncebox")

STEADY_SECONDS = 60.0
"""What has run this long is not ending again and again."""


def is_asked() -> bool:
    """Whether somebody wants the current task to end. Client libraries raise CancelledError, too, where a
    connection that was waited for is gone."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def lasting(what: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run until cancelled, or until it returns. Any other end is an error in the log, and another beginning."""
    ends = 0
    while True:
        began = time.monotonic()
        try:
            return await run()
        except asyncio.CancelledError as error:
            if is_asked():
                raise
            end: BaseException = error
        except Exception as error:
            if is_asked():
                raise
            end = error
        ends = 1 if time.monotonic() - began > STEADY_SECONDS else ends + 1
        pause = pause_seconds(ends)
        log.error("%s ended, though nobody asked it to; beginning again in %.1f s", what, pause, exc_info=end)
        await asyncio.sleep(pause)
