"""What `oncebox ingest` shows while it reads, keeps aside, and says at its end."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from oncebox.cli.output import plain
from oncebox.cli.text import age, many, one_line
from oncebox.errors import OnceboxError
from oncebox.ingest.backfill import Ingest
from oncebox.ingest.lines import Line, Lines

SAID_MAX = 20
"""Rejected lines that are reported one by one; the rest is counted."""
LISTED_MAX = 1000


class Aside:
    """The file of rejected lines, made when the first comes; None writes nothing. Lines stay as they are, so
    that a mended file can be ingested itself."""

    def __init__(self, path: Path | None, *, append: bool) -> None:
        self.path = path
        self.rejects: list[dict[str, Any]] = []
        """The first of them, with number and reason."""
        self._mode = "ab" if append else "wb"
        self._file: BinaryIO | None = None

    @property
    def written(self) -> bool:
        """Whether anything was kept."""
        return self._file is not None

    def reject(self, line: Line, reason: str) -> None:
        """Keep a line."""
        if len(self.rejects) < LISTED_MAX:
            self.rejects.append({"line": line.number, "reason": one_line(reason)})
        if not line.problem:
            self.write(line.body + b"\n")

    def write(self, piece: bytes) -> None:
        """Keep a piece of a line. OnceboxError when the disk says no: going on would lose it."""
        if self.path is None:
            return
        try:
            if self._file is None:
                self._file = self.path.open(self._mode)  # type: ignore[assignment]
            assert self._file is not None
            self._file.write(piece)
        except OSError as error:
            raise OnceboxError(f"{self.path} can't be written: {error.strerror or error}") from None

    def close(self) -> None:
        """Nothing is kept after this."""
        if self._file is not None:
            self._file.close()


class Bar:
    """A progress bar on standard error, where that is a terminal; rejected lines are said above it."""

    def __init__(self, name: str, raw: BinaryIO, lines: Lines, *, shown: bool) -> None:
        self._lines = lines
        self._said = 0
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[taken]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not (shown and sys.stderr.isatty()),
        )
        total = os.fstat(raw.fileno()).st_size if raw.seekable() else None
        self._task = self._progress.add_task(one_line(name), total=total or None, taken="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, run: Ingest) -> None:
        """How far it is."""
        rejected = f", {run.rejects:,} rejected" if run.rejects else ""
        taken = f"{many(run.lines, 'line')}{rejected}"
        self._progress.update(self._task, completed=self._lines.position(), taken=taken)

    def say(self, line: Line, reason: str) -> None:
        """Report a rejected line, if not too many were reported already."""
        self._said += 1
        if self._said <= SAID_MAX:
            self._console.print(plain(f"line {line.number}: {one_line(reason)}"))
        elif self._said == SAID_MAX + 1:
            self._console.print("… more are rejected; they are counted below")


def view(document: dict[str, Any]) -> RenderableType:
    """The summary."""
    table = Table(title=one_line(f"{document['file']} → {document['consumer']}"), title_justify="left")
    table.add_column("outcome")
    table.add_column("lines", justify="right")
    for outcome, number in document["outcomes"].items():
        table.add_row(plain(outcome, "red" if outcome == "dead" else ""), f"{number:,}")
    if document["rejected"]:
        table.add_row(plain("rejected", "red"), f"{document['rejected']:,}")
    parts: list[RenderableType] = [table]
    rate, seconds = document["lines_per_second"], age(document["seconds"])
    parts.append(Text(f"{many(document['lines'], 'line')} in {seconds} ({rate:,}/s), {document['ended']}"))
    if document["rejected_file"]:
        parts.append(plain(f"rejected lines are in {document['rejected_file']}"))
    if document["next"]:
        parts.append(plain(document["next"]))
    return Group(*parts)
