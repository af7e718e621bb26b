"""For the process that commands are forked from, and no other: importing this builds all commands, once.

Building them from their functions' annotations takes most of the time of a command. Nothing in them is kept
from one call to the next.
"""

import contextlib
import functools
import importlib
import typing

import typer.main

from oncebox.cli.commands import app

with contextlib.suppress(ImportError):
    # What options are checked with, which some versions import at the first one.
    importlib.import_module("typer._adapters")
# Calling an app looks this name up, and builds what it finds here.
_main: typing.Any = typer.main
_main.get_command = functools.cache(typer.main.get_command)
_main.get_command(app)
