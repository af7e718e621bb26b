"""Files that are there whole or not at all, and still there after a power cut."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(place: Path, data: bytes) -> None:
    """Write a file, with the folders that it is missing. Durable when it returns; what had its name is replaced.

    Raises OSError, and leaves then what was there before.
    """
    _make(place.parent)
    descriptor, temporary = tempfile.mkstemp(prefix=".new-", dir=place.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    # The rename itself must survive, too: whoever asked for the file is about to rely on it.
    _sync(place.parent)


def _make(folder: Path) -> None:
    missing = [folder, *folder.parents]
    for each in reversed(missing[: next((n for n, at in enumerate(missing) if at.exists()), 0)]):
        each.mkdir(exist_ok=True)
        _sync(each.parent)


def _sync(folder: Path) -> None:
    if os.name == "nt":  # folders can't be opened there, and renames are journalled
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
