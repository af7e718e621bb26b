"""Asking the doctor, and what tests look for in the answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from oncebox import App
from oncebox.doctor import Finding, Report, examine
from oncebox.drivers.database import Database
from tests.conftest import missing
from tests.servers import Unavailable


def faketime(shift: str) -> dict[str, str]:
    """What has a process see another time."""
    libraries = [str(path) for path in Path("/usr/lib").glob("*/faketime/libfaketime.so.1")]
    if not libraries:
        missing(Unavailable("libfaketime.so.1 was not found (Debian: apt-get install faketime)"))
    # The last has a command be a process of its own from its start, which is when a library is loaded before others.
    words = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1", "PYTHONUNBUFFERED": "1"}
    return {"LD_PRELOAD": libraries[0], "FAKETIME": shift, **words}


class Findings(list[Finding]):
    """What was found, by code."""

    @property
    def codes(self) -> set[str]:
        return {each.code for each in self}

    def of(self, code: str) -> Finding:
        """The one finding of this code."""
        [found] = [each for each in self if each.code == code]
        return found


async def asked(what: App | Database | str, *, patience_seconds: float = 300.0) -> Findings:
    """What the doctor says about an app, or about a database alone."""
    app = what if isinstance(what, App) else None
    database: Any = app.database if app is not None else Database(what) if isinstance(what, str) else what
    report: Report = await examine(database, app, patience_seconds=patience_seconds)
    return Findings(report.findings)


def ask(what: App | Database | str, *, patience_seconds: float = 300.0) -> Findings:
    """The same, outside of an event loop."""
    return asyncio.run(asked(what, patience_seconds=patience_seconds))
