"""Scenario by step by fault: run each cell, recover as a fresh process would, and ask the checker."""

from __future__ import annotations

from pathlib import Path

from oncebox.core.steps import Step
from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings
from oncebox.runtime.schema import migrate
from oncebox.runtime.sessions import SideChannel
from tests.crash.catchers import Catcher
from tests.crash.cells import ASYNC
from tests.crash.effects import create_table, reader
from tests.crash.faults import HANGS_SECONDS, Fault, Steps, moments
from tests.crash.kept import Kept
from tests.crash.nursery import Nursery
from tests.crash.planted import planted
from tests.crash.runs import Run
from tests.crash.scenarios import BY_NAME, Scenario


class Bench:
    """One database on which cells are run, each with a consumer of its own."""

    def __init__(self, url: str, variant: str, folder: Path, nursery: Nursery) -> None:
        self.variant = variant
        self.folder = folder
        self.nursery = nursery
        self.plain_url = url
        self.url = url.replace("postgresql://", "postgresql+asyncpg://") if variant == "asyncpg" else url
        self.recovering = "sqlite" if url.startswith("sqlite") else "psycopg"
        """What prepares and recovers: the blocking driver, so that only the broken part is the variant's."""
        migrate(Database(url))
        create_table(url)
        self.connect()

    def connect(self) -> None:
        """The connections that prepare, recover and look."""
        self.kept = Kept(self.plain_url)
        self.own = Kept(self.url)
        """Of the variant itself: its broken part has connections of its own where it must."""
        self.reader = reader(self.plain_url)
        self.side = SideChannel(self.kept, Settings(side=True))
        self.session = self.kept.connect(Settings())

    def close(self) -> None:
        self.reader.close()
        self.side.close()
        self.session.close()
        self.kept.close()
        self.own.close()

    def trace(self, scenario: Scenario) -> list[Step]:
        """The steps of a run in which nothing goes wrong; which must be right, too."""
        run = Run(self, scenario)
        steps = Steps()
        run.prepare()
        run.attempt(steps)
        run.finish()
        run.judge("no fault")
        return steps.kinds

    def faults(self, kinds: list[Step], *whats: str) -> list[Fault]:
        """Every fault of these kinds that can happen to these steps."""
        impossible = {"cut"} if self.variant.startswith("sqlite") else set()
        if self.variant not in ASYNC:
            impossible.add("cancel")
        return [
            Fault(number, when, what)
            for number, step in enumerate(kinds, 1)
            for what in whats
            if what not in impossible
            for when in moments(what, step, is_last=number == len(kinds))
        ]

    def break_at(self, scenario: Scenario, fault: Fault | None, bug: str = "") -> list[str]:
        """One cell, perhaps with a bug in it; the violations it showed."""
        run = Run(self, scenario)
        run.fault = fault
        run.prepare()
        if fault is not None and fault.what == "kill":
            run.attempt_in_child(fault, bug)
        else:
            with planted(bug):
                run.attempt(Steps(fault, seconds=HANGS_SECONDS))
        run.finish()
        return run.violations()

    def catches(self, catcher: Catcher) -> str:
        """Where the bug shows, in words; empty when nobody noticed it."""
        scenario = BY_NAME[catcher.scenario]
        kinds = self.trace(scenario)
        faults: list[Fault | None] = [*self.faults(kinds, catcher.what)] if catcher.what else [None]
        for fault in faults:
            for text in self.break_at(scenario, fault, catcher.bug):
                if catcher.words in text:
                    return f"{catcher.scenario}, {fault or 'no fault'}: {text}"
        return ""
