"""Text for a terminal: nothing in it can move the cursor, forge a line or show a password."""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime

from oncebox.errors import UsageError

_PASSWORD = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)(?P<user>[^\s:/?#@]*):\S*@", re.IGNORECASE)
_PASSWORD_WORD = re.compile(r"(?P<word>\bpassword\s*=\s*)('[^']*'|[^\s&]+)", re.IGNORECASE)
# Cc: control, Cf: direction overrides and other invisible ones, Cs: lone surrogates, Zl/Zp: line breaks.
_UNPRINTABLE = ("Cc", "Cf", "Cs", "Zl", "Zp")


def redact(text: str) -> str:
    """The text without the passwords of any connection string in it."""
    text = _PASSWORD.sub(lambda match: f"{match['scheme']}{match['user']}:***@", text)
    return _PASSWORD_WORD.sub(lambda match: f"{match['word']}***", text)


def clean(text: str, *, lines: bool = False) -> str:
    """The text without control characters; with `lines`, line breaks and tabs stay."""
    keep = "\n\t" if lines else ""
    if text.isprintable():
        return text
    return "".join(
        char if char in keep or unicodedata.category(char) not in _UNPRINTABLE else "" for char in text
    )


def one_line(text: str) -> str:
    """The text as one line that is safe to print."""
    return clean(redact(" ".join(text.split())))


def age(seconds: float | None) -> str:
    """A span for people: 0.4 s, 12 s, 3 min, 5 h, 2 d."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} d"


def moment(at: datetime | None) -> str:
    """A time for people, in UTC."""
    return "-" if at is None else at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def count(number: int, cap: int | None = None) -> str:
    """1,234; with a plus sign where counting stopped."""
    return f"{number:,}{'+' if cap is not None and number >= cap else ''}"


def many(number: int, noun: str) -> str:
    """`1 key`, `2 keys`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def seconds_of(span: str | None, option: str) -> float | None:
    """Seconds of `90s`, `15m`, `6h`, `2d`; UsageError naming the option for anything else."""
    if span is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", span.strip())
    if found is None:
        raise UsageError(f"{option} {clean(span)!r}: a number and a unit, as in 90s, 15m, 6h, 2d")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]
