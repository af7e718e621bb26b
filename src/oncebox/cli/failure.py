"""How a command that can't go on says so: one line on standard error, and an exit code."""

from __future__ import annotations

import sys
import traceback

from oncebox import errors
from oncebox.cli.text import one_line

FAILED = 1
MISUSED = 2


def exit_code(error: BaseException) -> int:
    """2 when something must be changed first, 1 when the same command may work later."""
    return MISUSED if isinstance(error, errors.UsageError) else FAILED


def explain(error: BaseException) -> str:
    """One line that names what is wrong and the next step; no password, no control characters."""
    text = str(error)
    if not isinstance(error, errors.OnceboxError):
        text = f"unexpected {type(error).__name__}: {text or 'no details'}; --debug shows where"
    return one_line("; ".join([text, *getattr(error, "__notes__", ())]))


def report(error: BaseException, *, debug: bool) -> int:
    """Print the line, and the traceback when asked for; the exit code."""
    if debug:
        # Through `one_line` per line: a traceback may quote a connection string as well.
        for line in "".join(traceback.format_exception(error)).splitlines():
            indent = line[: len(line) - len(line.lstrip())]
            print(indent + one_line(line), file=sys.stderr)
    print(f"oncebox: {explain(error)}", file=sys.stderr)
    return exit_code(error)
