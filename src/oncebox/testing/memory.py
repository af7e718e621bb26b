"""What a process remembers: the variables that the user's code reads, before and after.

Only to name a suspect. That memory changed is no fault by itself (caches do that); that rows depend
on it is, and rows show that.
"""

from __future__ import annotations

import gc
import itertools
from collections import deque
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

_PLAIN = (int, float, str, bytes, list, dict, set, tuple, deque, itertools.count, type(None))
_SHOWN_MAX = 60


class Memory:
    """Variables of the functions that ran: their globals, what they enclose, and their `self`."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()
        self._globals: dict[int, tuple[dict[str, Any], str, set[str]]] = {}
        self._cells: list[tuple[str, Any]] = []
        self._objects: dict[int, tuple[str, Any]] = {}

    def note(self, frame: FrameType) -> None:
        """A function of the user's begins."""
        code = frame.f_code
        if code in self._codes:
            return
        self._codes.add(code)
        _, _, names = self._globals.setdefault(
            id(frame.f_globals), (frame.f_globals, Path(code.co_filename).name, set())
        )
        names.update(code.co_names)
        own = frame.f_locals.get("self")
        if own is not None:
            self._objects[id(own)] = (f"self.{{}} of {type(own).__name__}", own)
        if code.co_freevars:
            for function in gc.get_referrers(code):
                if isinstance(function, FunctionType) and function.__closure__:
                    self._cells += [
                        (f"{name} around {function.__name__}", cell)
                        for name, cell in zip(code.co_freevars, function.__closure__, strict=False)
                    ]

    def state(self) -> dict[str, str]:
        """Every variable that can be shown, by a name that a reader finds."""
        found: dict[str, str] = {}
        for variables, file, names in self._globals.values():
            for name in sorted(names & variables.keys()):
                self._show(found, f"{name} of {file}", variables[name])
        for label, cell in self._cells:
            try:
                self._show(found, label, cell.cell_contents)
            except ValueError:
                continue
        for label, own in self._objects.values():
            for name, value in list(getattr(own, "__dict__", {}).items()):
                if isinstance(value, _PLAIN):
                    found[label.format(name)] = _shown(value)
        return found

    def _show(self, found: dict[str, str], label: str, value: Any) -> None:
        if isinstance(value, _PLAIN):
            found[label] = _shown(value)
            return
        if isinstance(value, (type, FunctionType)) or type(value).__module__ in ("builtins", "types"):
            return
        for name, inner in list(getattr(value, "__dict__", {}).items()):
            if isinstance(inner, _PLAIN):
                found[f"{name} in {label}"] = _shown(inner)


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """What changed, one sentence each."""
    return [
        f"{name}: {before[name]} → {after[name]}"
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        return "?"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}… ({len(text)} characters)"
