"""When a message was made, as far as anybody says: for measuring how long it took, never for identity."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from oncebox.identity.times import event_made_at, id_made_at, plausible, written
from oncebox.message import Message

_BROKER_TIMES = ("timestamp", "sent")
"""Where brokers' sources note when the broker or the producer's client took it: ISO 8601, or milliseconds."""
_ENTRY = re.compile(r"([0-9]{13})-[0-9]+")
"""The id of an entry in a Redis stream begins with the time it was added."""


def made_at(message: Message) -> float | None:
    """Seconds since 1970: the event's own time, else the broker's, else the one in a UUIDv7 or ULID; None where
    nothing says. Never raises."""
    found = event_made_at(message) if message.headers else None
    if found is None and message.provenance:
        found = _broker_time(message.provenance)
    return id_made_at(message.id) if found is None else found


def _broker_time(provenance: Mapping[str, Any]) -> float | None:
    for name in _BROKER_TIMES:
        if (time := _time(provenance.get(name))) is not None:
            return time
    entry = _ENTRY.fullmatch(str(provenance.get("id", "")))
    return None if entry is None else plausible(int(entry[1]) / 1000.0)


def _time(value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return plausible(value / 1000.0)
    if not isinstance(value, str):
        return None
    if value.isascii() and value.isdigit() and len(value) <= 15:
        return plausible(int(value) / 1000.0)
    return written(value)
