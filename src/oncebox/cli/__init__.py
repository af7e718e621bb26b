"""The command line. Everything it prints is said here; what it finds out and does is the runtime's."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The `oncebox` command: runs it and ends the process with its exit code.

    0: done. 1: it was tried and failed. 2: usage, configuration or schema says no, and the one line
    on standard error names the next step. 128 + n: stopped at once by a second signal n.
    """
    from oncebox.cli.commands import run_command

    raise SystemExit(run_command())
