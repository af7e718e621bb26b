"""What a person sees: live bars on a terminal, a few plain lines elsewhere, one table at the end."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from oncebox.demo.order import Side
from oncebox.demo.schedule import WORKERS, Schedule
from oncebox.demo.verdict import Figures, Report, sentence

LABELS: dict[Side, str] = {"unprotected": "usual handler", "oncebox": "oncebox"}
LINES_PER_RUN = 4


class Bars:
    """One bar per run, with its kills beside it."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<13}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("acked"),
            TextColumn("[red]{task.fields[killed]:>3} killed"),
            TimeElapsedColumn(),
            console=console,
            expand=True,
        )
        self._tasks: dict[Side, TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def began(self, side: Side, deliveries: int, kills: int) -> None:
        """A run begins."""
        self._tasks[side] = self._progress.add_task(LABELS[side], total=deliveries, killed=0)

    def moved(self, side: Side, acked: int, kills: int) -> None:
        """So far."""
        self._progress.update(self._tasks[side], completed=acked, killed=kills)

    def ended(self, side: Side, figures: Figures) -> None:
        """A run is over: everything is acked."""
        task = self._tasks[side]
        total = self._progress.tasks[task].total or 0
        self._progress.update(task, completed=total, killed=figures.kills)
        self._progress.stop_task(task)


class Lines:
    """The same without a terminal: a line per quarter of a run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = 1
        self._next = 1

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def began(self, side: Side, deliveries: int, kills: int) -> None:
        """A run begins."""
        self._total, self._next = deliveries, 1
        self._print(f"{LABELS[side]}: {deliveries:,} deliveries to come, {kills} kills planned")

    def moved(self, side: Side, acked: int, kills: int) -> None:
        """So far; the end has a line of its own."""
        if self._next < LINES_PER_RUN and acked * LINES_PER_RUN >= self._total * self._next:
            self._next = acked * LINES_PER_RUN // self._total + 1
            self._print(f"{LABELS[side]}: {acked:,} of {self._total:,} acked, {kills} workers killed")

    def ended(self, side: Side, figures: Figures) -> None:
        """A run is over."""
        self._print(f"{LABELS[side]}: done in {figures.seconds:.1f} s, {figures.kills} workers killed")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)


def progress(console: Console) -> Bars | Lines:
    """What suits the console."""
    return Bars(console) if console.is_terminal and not console.is_dumb_terminal else Lines(console)


def introduce(console: Console, schedule: Schedule, place: str, *, ack_first: bool) -> None:
    """What is about to happen."""
    resent = len(schedule.order) - len(schedule.payments)
    usual = "acks, then charges" if ack_first else "charges, commits, then acks"
    console.print(
        f"{len(schedule.payments):,} payments and {resent:,} duplicates, on {place}. {WORKERS} worker processes "
        f"take them from a broker that redelivers, and are killed (kill -9) {len(schedule.kills)} "
        f"times. First the usual handler ({usual}), then oncebox. Seed {schedule.seed}.",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )


def conclude(console: Console, report: Report) -> None:
    """The table, and what it means."""
    table = Table(title_justify="left")
    table.add_column("")
    table.add_column(LABELS["unprotected"], justify="right")
    table.add_column(LABELS["oncebox"], justify="right")
    both = (report.unprotected, report.oncebox)
    table.add_row("deliveries", *(f"{figures.deliveries:,}" for figures in both))
    table.add_row("kills", *(f"{figures.kills:,}" for figures in both))
    table.add_row("payments", *(f"{figures.messages:,}" for figures in both))
    table.add_row("ledger entries", *(f"{figures.effects:,}" for figures in both))
    table.add_row("lost", *(_judged(figures.lost) for figures in both))
    table.add_row("doubled", *(_judged(figures.doubled) for figures in both))
    table.add_row("rate, restarts included", *(f"{figures.rate:,.0f}/s" for figures in both))
    console.print(table)
    console.print(sentence(report), highlight=False, soft_wrap=not console.is_terminal)


def _judged(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "bold green")
