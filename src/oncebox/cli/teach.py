"""A command's docstring as help: prose is joined to flow with the terminal, indented lines stay as they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def teach(command: Callable[..., Any]) -> str:
    """The help text of a command, from its docstring."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else paragraph.replace("\n", " ") for paragraph in paragraphs
    )
