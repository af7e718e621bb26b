"""The user's own lines, counted while a handler runs; at one of them the process dies.

Only code that is neither Python's, nor installed, nor oncebox's counts: the handler and what it calls
of the user's project.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from oncebox.runtime import handlers
from oncebox.testing.memory import Memory

_OURS = str(Path(__file__).resolve().parents[1]) + "/"
_FOREIGN = tuple(
    {
        str(Path(path).resolve()) + "/"
        for name, path in sysconfig.get_paths().items()
        if name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    | {_OURS}
)


class Died(BaseException):
    """The process is dead; not an Exception, so that no handler takes it for one of its own."""


@lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """Whether a file is part of the user's project."""
    if filename.startswith("<"):
        return False
    return not str(Path(filename).resolve()).startswith(_FOREIGN)


def _is_handler(frame: FrameType) -> bool:
    """Whether the runtime calls this function as a handler."""
    caller = frame.f_back
    return (
        caller is not None
        and caller.f_code.co_filename == handlers.__file__
        and not frame.f_code.co_filename.startswith((_OURS, "<"))
    )


class Lines:
    """Counts lines inside `tracing`; raises at number `dies_at`, if that is not 0."""

    def __init__(self, dies_at: int = 0) -> None:
        self.places: list[tuple[str, int, str]] = []
        """File, line and function of every line that was about to run, in order."""
        self.memory = Memory()
        self.struck = False
        self._dies_at = dies_at
        self._packages: tuple[str, ...] = ("\0",)
        """Folders of handlers that are installed: an app in site-packages is the user's all the same."""

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """For this thread; what traced before (a debugger, coverage) traces again afterwards."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        file = frame.f_code.co_filename
        if not is_users(file) and not file.startswith(self._packages):
            if not _is_handler(frame):
                return None
            self._packages += (str(Path(file).parent) + "/",)
        self.memory.note(frame)
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.places.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            if len(self.places) == self._dies_at:
                self.struck = True
                raise Died
        return self._step

    def told(self) -> list[str]:
        """Every place in words."""
        return [f"{Path(file).name}:{line} in {name}" for file, line, name in self.places]

    def chosen(self, most: int) -> list[int]:
        """Numbers to die at: each line once, where it first comes; spread evenly when they are too many."""
        first: dict[tuple[str, int], int] = {}
        for number, (file, line, _) in enumerate(self.places, 1):
            first.setdefault((file, line), number)
        numbers = sorted(first.values())
        if len(numbers) <= most:
            return numbers
        if most < 2:
            return numbers[-most:] if most else []
        return [numbers[round(n * (len(numbers) - 1) / (most - 1))] for n in range(most)]
