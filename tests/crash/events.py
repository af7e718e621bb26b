"""A log that survives a kill: one line per event, written with one system call each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.crash.checker import Key, Start


class Events:
    """Appends to a file that several processes may share; what was logged is there after a SIGKILL."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._open()

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        return self._file

    def log(self, event: str, **details: Any) -> None:
        """Write one event down, with the process it happened in."""
        line = json.dumps({"event": event, "pid": os.getpid(), **details})
        os.write(self._open(), line.encode() + b"\n")

    def all(self, *names: str) -> list[dict[str, Any]]:
        """What was logged so far: these events, or all."""
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [line for line in lines if not names or line["event"] in names]

    def close(self) -> None:
        """Let the file go, until there is more to write."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def key_of(event: dict[str, Any]) -> Key:
    return (event["consumer"], event["source"], event["id"])


def acked(events: Iterable[dict[str, Any]]) -> list[Key]:
    """The keys that were acked, in order."""
    return [key_of(event) for event in events if event["event"] == "ack"]


def starts(events: list[dict[str, Any]], killed: Iterable[int]) -> list[Start]:
    """Every start of a handler. A process that was killed died with its last start of a message that it
    had not settled."""
    gone = set(killed)
    found: list[Start] = []
    for at, event in enumerate(events):
        if event["event"] != "start":
            continue
        later = any(
            after["event"] in ("start", "ack", "nack", "settled")
            and after["pid"] == event["pid"]
            and key_of(after) == key_of(event)
            for after in events[at + 1 :]
        )
        found.append(Start(key_of(event), event["attempt"], event["pid"] in gone and not later))
    return found
