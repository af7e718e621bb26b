"""How processes that share one port answer for each other: each writes down what it has counted, and whoever is
asked adds all of it up.

A child writes to the file of its place among its parent's children, and begins with what its predecessor there
left: a counter never goes back because a process died.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from oncebox.runtime.meter import Snapshot, add_up

_decode = msgspec.json.Decoder(Snapshot).decode


class Alone:
    """One process that answers for itself."""

    def __init__(self, own: Callable[[], Snapshot]) -> None:
        self._own = own

    def write(self) -> None:
        """Nobody else has to know."""

    def together(self) -> Snapshot:
        """What was counted."""
        return add_up([self._own()])


class Shared:
    """One of several. `file` is this process's; the others' are beside it."""

    def __init__(self, own: Callable[[], Snapshot], file: Path) -> None:
        self._own = own
        self._file = file
        self._before = _read(file)

    def write(self) -> None:
        """Tell the others. What can't be written now is written the next time."""
        fresh = self._file.with_suffix(".new")
        with contextlib.suppress(OSError):
            fresh.write_bytes(msgspec.json.encode(add_up([self._before, self._own()])))
            os.replace(fresh, self._file)

    def together(self) -> Snapshot:
        """What all of them have counted."""
        # Ours through the file as well: whoever is asked next must not know less than was said here.
        self.write()
        return add_up(_read(file) for file in sorted(self._file.parent.glob("*.json")))


def _read(file: Path) -> Snapshot:
    try:
        return _decode(file.read_bytes())
    except (OSError, msgspec.DecodeError):
        return Snapshot()
