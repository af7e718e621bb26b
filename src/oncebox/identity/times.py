"""When a message was made, by its own word: ids that carry their time, and the time of an event."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from urllib.parse import unquote

from oncebox.message import Message

_UUID7 = re.compile(
    r"([0-9a-f]{8})-?([0-9a-f]{4})-?7[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}", re.IGNORECASE
)
_UUID_LENGTHS, _ULID_LENGTH = (36, 32), 26
TIMED_LENGTHS = (*_UUID_LENGTHS, _ULID_LENGTH)
"""No other id carries its time."""
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}", re.IGNORECASE)
_CROCKFORD = {char: value for value, char in enumerate("0123456789ABCDEFGHJKMNPQRSTVWXYZ")}
_EVENT_TIMES = ("ce-time", "ce_time", "cloudevents:time", "cloudevents_time")
_FIRST = datetime(2000, 1, 1, tzinfo=UTC).timestamp()
_LAST = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
"""What claims to be from before the one or after the other is no time but a number that looks like one."""


def id_made_at(message_id: str) -> float | None:
    """Seconds since 1970 that a UUIDv7 or a ULID carries; None for every other id."""
    size = len(message_id)
    if size in _UUID_LENGTHS and (found := _UUID7.fullmatch(message_id)):
        return plausible(int(found[1] + found[2], 16) / 1000)
    # Of digits alone, and as long as a ULID: somebody's number.
    if size == _ULID_LENGTH and not message_id.isdigit() and _ULID.fullmatch(message_id):
        milliseconds = 0
        for char in message_id[:10].upper():
            milliseconds = milliseconds * 32 + _CROCKFORD[char]
        return plausible(milliseconds / 1000)
    return None


def event_made_at(message: Message) -> float | None:
    """The `time` of a CloudEvent that has its attributes in headers; None without one."""
    for name, value in message.headers:
        if name.lower() in _EVENT_TIMES:
            return written(unquote(value.decode("ascii", "replace")))
    return None


def written(text: str) -> float | None:
    """A time as ISO 8601 has it; without a zone, UTC is meant."""
    try:
        found = datetime.fromisoformat(text)
        return plausible((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return None


def plausible(seconds: float) -> float | None:
    """The time, where it can be one."""
    return seconds if _FIRST <= seconds < _LAST else None
