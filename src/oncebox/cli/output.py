"""Where results go: tables for people, or one JSON document, on standard output."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from oncebox.cli.text import clean

_PIPED_WIDTH = 160


def console() -> Console:
    """Standard output. Where it is no terminal, tables are not squeezed into 80 columns."""
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False, soft_wrap=False)


def print_json(document: Any, *, indent: int | None = 2) -> None:
    """One document, in ASCII: what is not printable is escaped, so no terminal acts on it."""
    print(json.dumps(msgspec.to_builtins(document), indent=indent), flush=True)


def plain(text: str, style: str = "") -> Text:
    """Text from outside: no control characters, and no markup is read in it."""
    return Text(clean(text), style=style)


def lines(text: str, style: str = "") -> Text:
    """The same over several lines."""
    return Text(clean(text, lines=True), style=style)
