"""When a message was made, as far as anybody says: for measuring how long it took, never for identity."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from oncebox.identity.cloudevents import header_text
from oncebox.message import Message

_TIME_HEADERS = ("ce-time", "ce_time", "cloudevents:time", "cloudevents_time")
"""CloudEvents' `time`, as HTTP and NATS, Kafka and AMQP write it."""
_BROKER_TIMES = ("timestamp", "sent")
"""Where brokers' sources note when the broker or the producer's client took it: ISO 8601, or milliseconds."""
_ENTRY = re.compile(r"([0-9]{13})-[0-9]+")
"""The id of an entry in a Redis stream begins with the time it was added."""
_UUID7 = re.compile(
    r"([0-9a-f]{8})-?([0-9a-f]{4})-?7[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}", re.IGNORECASE
)
_ULID = re.compile(r"([0-7][0-9A-HJKMNP-TV-Z]{9})[0-9A-HJKMNP-TV-Z]{16}")
_CROCKFORD = {digit: value for value, digit in enumerate("0123456789ABCDEFGHJKMNPQRSTVWXYZ")}
_SANE = (946_684_800.0, 7_258_118_400.0)
"""The years 2000 to 2200: what is outside is a number that happens to look like a time."""


def made_at(message: Message) -> float | None:
    """Seconds since 1970: the event's own time, else the broker's, else the one in a UUIDv7 or ULID; None where
    nothing says. Never raises."""
    found = _event_time(message) if message.headers else None
    if found is None and message.provenance:
        found = _broker_time(message.provenance)
    if found is None:
        found = _id_time(message.id)
    return found if found is not None and _SANE[0] <= found <= _SANE[1] else None


def _event_time(message: Message) -> float | None:
    for name in _TIME_HEADERS:
        if (text := header_text(message.headers, name)) is not None:
            return _time(text)
    return None


def _broker_time(provenance: Mapping[str, Any]) -> float | None:
    for name in _BROKER_TIMES:
        if (time := _time(provenance.get(name))) is not None:
            return time
    entry = _ENTRY.fullmatch(str(provenance.get("id", "")))
    return None if entry is None else int(entry[1]) / 1000.0


def _time(value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return value / 1000.0
    if not isinstance(value, str):
        return None
    if value.isascii() and value.isdigit() and len(value) <= 15:
        return int(value) / 1000.0
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _id_time(id_: str) -> float | None:
    if (found := _UUID7.fullmatch(id_)) is not None:
        return int(found[1] + found[2], 16) / 1000.0
    if (found := _ULID.fullmatch(id_)) is not None:
        total = 0
        for digit in found[1]:
            total = total * 32 + _CROCKFORD[digit]
        return total / 1000.0
    return None
