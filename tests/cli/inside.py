"""The command line without a process of its own: the same words, exit codes and text, for many small questions."""

import asyncio
import functools
import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

import typer.main

from oncebox.cli.commands import run_command
from tests.cli.kit import Done
from tests.core.kit import Shop

AUDIT = "verb, who, reason, consumer, source, message_id, result"
_built = functools.cache(typer.main.get_command)
"""Building the commands takes longer than most of them."""


def inside(*words: str) -> Done:
    """`oncebox WORDS`."""
    out, err = io.StringIO(), io.StringIO()
    once = patch.object(typer.main, "get_command", _built)
    with once, patch.object(sys, "argv", ["oncebox", *words]), redirect_stdout(out), redirect_stderr(err):
        code = run_command()
    return Done(code, out.getvalue(), err.getvalue())


class Desk:
    """A shop, and somebody who decides about its messages."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    def __call__(self, *words: str) -> Done:
        """`oncebox WORDS --database …`."""
        return inside(*words, "--database", self.shop._url)

    def refuses(self, *words: str) -> str:
        """The one line that says why it can't be done; nothing was changed or printed."""
        before = self.audit("act")
        done = self(*words)
        assert (done.code, done.out) == (2, ""), done
        assert self.audit("act") == before
        assert done.err.startswith("oncebox: ")
        assert done.err.count("\n") == 1
        return done.err.removeprefix("oncebox: ").strip()

    def work_off(self, consumer: Any) -> None:
        """Have a worker do all that is due."""
        asyncio.run(self.shop.work_off(consumer))

    def audit(self, columns: str = AUDIT) -> list[tuple[Any, ...]]:
        """What is on record, in the order it was written."""
        order = "rowid" if self.shop.kind.engine == "sqlite" else "at, ctid"
        return self.shop.rows(f"SELECT {columns} FROM {self.shop.table('audit')} ORDER BY {order}")
