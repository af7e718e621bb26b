"""The core's behavioural tests, to be run again with handlers that get the app's session."""

from collections.abc import Callable
from types import ModuleType
from typing import Any


def of(*modules: ModuleType) -> dict[str, Callable[..., Any]]:
    """The modules' tests by name, without those that are about particular drivers."""
    found = {name: test for module in modules for name, test in vars(module).items()}
    return {name: test for name, test in found.items() if name.startswith("test_") and not _is_picky(test)}


def _is_picky(test: Any) -> bool:
    marks = getattr(test, "pytestmark", [])
    return any(mark.name == "parametrize" and "kind" in mark.args[0] for mark in marks)
