"""A command's docstring as help: prose is joined to flow with the terminal, indented lines stay as they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer


def teach(command: Callable[..., Any]) -> str:
    """The help text of a command, from its docstring."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else paragraph.replace("\n", " ") for paragraph in paragraphs
    )


def show_flags_bare(command: Any) -> None:
    """Have the help of a command, and of those below it, show flags as `--json`, not as `--json <bool>`."""
    own = command.get_help_option(typer.Context(command, help_option_names=["-h", "--help"]))
    for parameter in [*command.params, *([own] if own is not None else [])]:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for below in getattr(command, "commands", {}).values():
        show_flags_bare(below)
