"""A command in a process of its own, forked from one that has everything imported.

A fresh interpreter takes longer than most commands. The child gets its own arguments, folder, environment,
module path and output, and ends as an interpreter ends.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import threading
import traceback
from typing import NoReturn

MODULES = (
    "oncebox.cli.commands", "oncebox.drivers.asyncpg", "oncebox.drivers.psycopg", "oncebox.drivers.sqlite",
    "pydantic.type_adapter", "pydantic.types", "tests.cli.built", "tests.cli.warm", "typer.rich_utils",
)  # fmt: skip
"""What commands import, some of it only when they need it."""


def main(words: list[str], cwd: str, env: dict[str, str], path: list[str], out: str, err: str) -> NoReturn:
    """In the child: `python -m oncebox.cli WORDS`."""
    os.open(os.devnull, os.O_RDONLY)  # takes the place of standard input, which the nursery has closed
    for place, number in ((out, 1), (err, 2)):
        os.dup2(os.open(place, os.O_WRONLY | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:] = [cwd, *path]
    sys.argv = ["oncebox", *words]
    code: object = 0
    try:
        runpy.run_module("oncebox.cli", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)
