"""What `oncebox replay` shows while it runs, and says at its end."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from oncebox.cli.output import plain
from oncebox.cli.text import age, count, many, one_line
from oncebox.ingest.lines import Lines


class Doing(msgspec.Struct, kw_only=True):
    """What is being done."""

    consumer: str
    shadow: bool
    file: tuple[BinaryIO, Lines] | None = None


class Bar:
    """A progress bar with rate and time left, on standard error where that is a terminal."""

    def __init__(self, doing: Doing, *, shown: bool) -> None:
        self._doing = doing
        self._began = time.monotonic()
        self._before: int | None = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[done]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True, highlight=False, soft_wrap=True),
            transient=True,
            disable=not (shown and sys.stderr.isatty()),
        )
        what = f"{'shadow' if doing.shadow else 'replay'} {doing.consumer}"
        self._task = self._progress.add_task(one_line(what), total=None, done="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, came: Any) -> None:
        """How far it is. Places are given out to all consumers alike, so that their share is an estimate."""
        done = came.messages if self._doing.shadow else came.handled
        self._before = done if self._before is None else self._before
        seconds = time.monotonic() - self._began
        rate = (done - self._before) / seconds if seconds > 0 else 0.0
        if self._doing.file is not None:
            raw, lines = self._doing.file
            total = os.fstat(raw.fileno()).st_size if raw.seekable() else None
            completed = lines.position()
        else:
            total, completed = came.bound - came.first, came.place - came.first
        said = f"{done:,} handled, {rate:,.0f}/s"
        self._progress.update(self._task, total=total or None, completed=completed, done=said)


def replayed(document: dict[str, Any]) -> RenderableType:
    """The summary of a replay."""
    table = Table(
        title=one_line(f"replay of {document['consumer']}"),
        title_justify="left",
        title_style="bold",
        show_header=False,
    )
    table.add_column()
    table.add_column(justify="right")
    for word in ("handled", "skipped", "failed", "suppressed"):
        table.add_row(word, count(document[word]))
    table.add_row("took", age(document["seconds"]))
    end = (
        f"run {document['id']} is at its end"
        if document["ended"] == "done"
        else f"run {document['id']} was stopped; the same command goes on with it"
    )
    return Group(table, plain(end))


def shadowed(document: dict[str, Any]) -> RenderableType:
    """What would have changed."""
    table = Table(
        title=one_line(f"{document['consumer']}: what a replay would change"),
        title_justify="left",
        title_style="bold",
    )
    table.add_column("table")
    for word in ("inserted", "updated", "deleted"):
        table.add_column(word, justify="right")
    for name, rows in sorted(document["tables"].items()):
        table.add_row(plain(name), *(count(rows[word]) for word in ("inserted", "updated", "deleted")))
    parts: list[RenderableType] = [table]
    for word, said in (
        ("published", "would be published"),
        ("sent", "would be sent"),
        ("calls", "calls to the outside, which a replay leaves out"),
        ("failed", "failed"),
    ):
        parts += [plain(f"{count(n)} {kind}: {said}") for kind, n in sorted(document[word].items())]
    ended = "" if document["ended"] == "done" else "; stopped before the end"
    parts.append(
        plain(
            f"{many(document['messages'], 'message')} in {age(document['seconds'])}, all rolled back{ended}",
            "bold",
        )
    )
    return Group(*parts)
