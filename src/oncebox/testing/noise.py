"""Values that differ between two right runs: times, random ids, what comes from a sequence.

Everything else that differs came from somewhere else than message and database, most likely from the
process's memory; it is not explained here, and so it is a fault.
"""

from __future__ import annotations

import re
import time

from oncebox.testing.tables.state import SHIFT

_TIME = (
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|UTC|[+-]\d\d(?::?\d\d)?))?|\d{4}-\d\d-\d\d"
)
_CLOCK = r"\d\d:\d\d:\d\d(?:\.\d+)?"
_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_PART = re.compile(
    rf"(?P<time>{_TIME}|{_CLOCK})|(?P<uuid>{_UUID})|(?P<number>-?\d+(?:\.\d+)?(?![0-9A-Za-z_]))"
    r"|(?P<word>[0-9A-Za-z_][0-9A-Za-z_+/=-]*)|(?P<rest>[^0-9A-Za-z_-]+|-)"
)
_DAY_SECONDS = 86_400.0
_UNITS = (1, 1_000, 1_000_000, 1_000_000_000)
TOKEN_LEAST = 8
"""Shortest text that can be a random id by itself."""

Part = tuple[str, str]


def explained(first: str | None, second: str | None, *, sequences: bool = False) -> bool:
    """Whether two runs may differ by this; with `sequences`, also by what a sequence was moved."""
    if first is None or second is None:
        return False
    ours, theirs = _parts(first), _parts(second)
    if len(ours) != len(theirs):
        return False
    return all(
        a == b or _may_differ(a, b) or (sequences and _is_shifted(a[1], b[1]))
        for a, b in zip(ours, theirs, strict=True)
    )


def _is_shifted(first: str, second: str) -> bool:
    ours, theirs = re.findall(r"\d+|\D+", first), re.findall(r"\d+|\D+", second)
    return len(ours) == len(theirs) and all(
        a == b or (a.isdigit() and b.isdigit() and (int(b) - int(a)) % SHIFT == 0)
        for a, b in zip(ours, theirs, strict=True)
    )


def plain(value: str | None) -> str | None:
    """The value without what may differ between two runs."""
    if value is None:
        return None
    return "".join(_blank(part) for part in _parts(value))


def natural(value: str) -> list[tuple[int, int, str]]:
    """How people order it: 9 before 10."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.findall(r"\d+|\D+", value)
    ]


def _parts(value: str) -> list[Part]:
    return [(str(found.lastgroup), found[0]) for found in _PART.finditer(value)]


def _may_differ(first: Part, second: Part) -> bool:
    (kind, ours), (other, theirs) = first, second
    if kind == other == "number":
        return _numbers_may_differ(ours, theirs)
    if kind == other and kind in ("time", "uuid"):
        return True
    return {kind, other} <= {"word", "number"} and _is_random(ours, theirs)


def _numbers_may_differ(ours: str, theirs: str) -> bool:
    """Times and large random numbers; and measured ones, which have many digits after the point."""
    if _is_now(ours) and _is_now(theirs):
        return True
    if "." in ours or "." in theirs:
        return max(len(number.partition(".")[2]) for number in (ours, theirs)) >= 6
    least = min(abs(int(ours)), abs(int(theirs)))
    return least >= 2**31 and abs(int(ours) - int(theirs)) >= 1000


def _is_now(number: str) -> bool:
    return any(abs(float(number) / unit - time.time()) < _DAY_SECONDS for unit in _UNITS)


def _is_random(ours: str, theirs: str) -> bool:
    """Long, and different in many places: the next value of a counter differs in one or two."""
    if min(len(ours), len(theirs)) < TOKEN_LEAST or abs(len(ours) - len(theirs)) > 4:
        return False
    differing = sum(a != b for a, b in zip(ours, theirs, strict=False))
    return differing >= max(3, min(len(ours), len(theirs)) // 4)


def _blank(part: Part) -> str:
    kind, text = part
    match kind:
        case "time" | "uuid":
            return f"<{kind}>"
        case "number" if _is_now(text):
            return "<time>"
        case "number" if len(text.partition(".")[2]) >= 6 or ("." not in text and abs(int(text)) >= 2**31):
            return "<number>"
        case "word" | "number" if len(text) >= TOKEN_LEAST and re.search(r"\d", text):
            return "<id>"
    return text
