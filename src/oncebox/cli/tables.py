"""Tables that stay readable in a narrow terminal: no word in them is cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_AROUND = 3
"""What a column costs besides its text: a space on either side and a line; the table has one line more."""


class Rows:
    """Rows under a title. A column that is empty everywhere is left out. Where the longest words would not fit
    beside each other, the columns from `second` on get a table of their own, or, without that, each row is a block
    of `column  value` lines."""

    def __init__(
        self, title: str, columns: Sequence[str], *, right: Sequence[str] = (), second: int | None = None
    ) -> None:
        self._title = title
        self._columns = columns
        self._right = right
        self._second = second
        self._rows: list[list[Text]] = []

    def add(self, *cells: str | Text) -> None:
        """A row; text from outside comes cleaned."""
        self._rows.append([Text(cell) if isinstance(cell, str) else cell for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = [n for n in range(len(self._columns)) if any(row[n].plain for row in self._rows)]
        widths = self._widths(shown, options.max_width)
        if widths is None and self._second is not None:
            yield self._part(self._title, range(self._second))
            yield self._part("", [0, *range(self._second, len(self._columns))])
            return
        if widths is None:
            yield Text(self._title, style="bold")
            for row in self._rows:
                yield Text("")
                yield self._block([(self._columns[n], row[n]) for n in shown if row[n].plain])
            return
        table = Table(title=self._title or None, title_justify="left", title_style="bold")
        for n, width in zip(shown, widths, strict=True):
            name = self._columns[n]
            table.add_column(name, width=width, justify="right" if name in self._right else "left")
        for row in self._rows:
            table.add_row(*(row[n] for n in shown))
        yield table

    def _part(self, title: str, chosen: Sequence[int]) -> Rows:
        part = Rows(title, [self._columns[n] for n in chosen], right=self._right)
        for row in self._rows:
            part.add(*(row[n] for n in chosen))
        return part

    def _widths(self, shown: list[int], room: int) -> list[int] | None:
        """Of each column; None where that is less than its longest word for any of them."""
        texts = [[self._columns[n], *(row[n].plain for row in self._rows)] for n in shown]
        widths = [max(cell_len(word) for text in column for word in text.split() or [""]) for column in texts]
        spare = room - 1 - sum(width + _AROUND for width in widths)
        if spare < 0:
            return None
        # Short texts are the first to get what is left: they gain a line each, long ones wrap anyway.
        wanted = [max(cell_len(text) for text in column) for column in texts]
        for n in sorted(range(len(widths)), key=lambda n: wanted[n] - widths[n]):
            more = min(wanted[n] - widths[n], spare)
            widths[n] += more
            spare -= more
        return widths

    @staticmethod
    def _block(facts: list[tuple[str, Text]]) -> Table:
        block = Table.grid(padding=(0, 2))
        block.add_column(style="dim", no_wrap=True)
        block.add_column(overflow="fold")
        for name, value in facts:
            block.add_row(name, value)
        return block
