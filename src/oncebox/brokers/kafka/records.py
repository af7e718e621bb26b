"""Between a Kafka record and oncebox: a delivery from what was read, a record from what is published."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE
from confluent_kafka import Message as Record

from oncebox.brokers.contract import Delivery
from oncebox.brokers.destination import topic_of
from oncebox.brokers.kafka.producing import Written, WrittenHeaders
from oncebox.message import ID_BYTES_MAX, Headers, Message

ID_HEADERS = ("message-id", "message_id", "messageid", "id", "ce_id")
"""Where producers put a message's id, most telling first. Kafka itself has no place for one."""
_UNTOLD = len(ID_HEADERS)


def delivery(record: Record) -> Delivery:
    """The record as it was read. A tombstone is an empty body, and `tombstone` in its provenance."""
    raw_headers: Any = record.headers()
    headers, properties = _read(raw_headers) if raw_headers else ((), {})
    raw_key = record.key()
    key = None if raw_key is None else key_text(raw_key)
    provenance: dict[str, Any] = {
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
    }
    if key is not None:
        provenance["key"] = key
    kind, milliseconds = record.timestamp()
    if kind != TIMESTAMP_NOT_AVAILABLE:
        provenance["timestamp"] = milliseconds
    if key is not None and raw_key not in (key, key.encode()):
        properties["key"] = raw_key  # for whoever writes it elsewhere
    value: Any = record.value()
    if value is None:
        provenance["tombstone"] = True
        value = b""
    return Delivery(body=value, headers=headers, properties=properties, provenance=provenance, key=key)


def _read(raw: list[tuple[str, bytes | None]]) -> tuple[Headers, dict[str, Any]]:
    """The headers, and what they say of identity and type: of several, the most telling, and of equals the first."""
    found: dict[str, Any] = {}
    best = _UNTOLD
    has_null = False
    for name, value in raw:
        if value is None:
            has_null, value = True, b""
        role, rank = _role(name)
        if role == "message_id":
            if rank < best and value:
                best = rank
                found[role] = _text(value)
        elif role and role not in found:
            found[role] = _text(value)
    # Kafka tells null from empty; we don't.
    headers: Any = tuple((name, value or b"") for name, value in raw) if has_null else tuple(raw)
    return headers, found


@lru_cache(maxsize=1024)
def _role(name: str) -> tuple[str, int]:
    """Which property a header is ("" for none), and its rank among those for the same."""
    lower = name.lower()
    if lower in ID_HEADERS:
        return "message_id", ID_HEADERS.index(lower)
    return {"type": "type", "content-type": "content_type"}.get(lower, ""), 0


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value  # resolvers say that it is not text


def key_text(key: Any) -> str | None:
    """A key as text, for ordering: as it is where it is text, else its bytes in hex, else a digest."""
    if key is None:
        return None
    raw = key.encode() if isinstance(key, str) else bytes(key)
    if len(raw) <= ID_BYTES_MAX and b"\0" not in raw:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            pass
    # Integers and Avro keys hold NULs, which no text column takes.
    text = f"0x{raw.hex()}"
    return text if len(text) <= ID_BYTES_MAX else f"sha256:{hashlib.sha256(raw).hexdigest()}"


def to_write(message: Message, default: str) -> Written:
    """A message as the record that a sink writes."""
    return Written(
        destination(message, default),
        None if message.provenance.get("tombstone") else message.payload,
        None if message.key is None else message.key.encode(),
        outgoing(message),
    )


def as_it_came(delivery: Delivery, topic: str, reason: str) -> Written:
    """A delivery as it was read, for another topic: same body, key and headers, and so the same id;
    then why it goes there, and where it lay."""
    where = delivery.provenance
    key = delivery.properties.get("key", delivery.key)
    return Written(
        topic,
        None if where.get("tombstone") else delivery.body,
        key.encode() if isinstance(key, str) else key,
        [
            *delivery.headers,
            ("oncebox-reason", reason),
            ("oncebox-origin", f"{where.get('topic')}:{where.get('partition')}:{where.get('offset')}"),
        ],
    )


def as_it_was_stored(message: Message, topic: str, reason: str) -> Written:
    """The same for a message that was stored: what is kept of it, with its identity in headers."""
    where = message.provenance
    return Written(
        topic,
        None if where.get("tombstone") else message.payload,
        None if message.key is None else message.key.encode(),
        [
            *outgoing(message),
            ("oncebox-reason", reason),
            ("oncebox-origin", f"{where.get('topic')}:{where.get('partition')}:{where.get('offset')}"),
        ],
    )


def outgoing(message: Message) -> WrittenHeaders:
    """A message's headers on its way out: its identity as CloudEvents has it where it names a source,
    else as plain headers; then its own, except those that would say the same again."""
    if message.source:
        own = {"ce_specversion": "1.0", "ce_id": message.id, "ce_source": message.source}
        if message.type:
            own["ce_type"] = message.type
    else:
        own = {"message-id": message.id}
        if message.type:
            own["type"] = message.type
    own["content-type"] = message.content_type
    rest = [(name, value) for name, value in message.headers if name.lower() not in own]
    return [*own.items(), *rest]


def destination(message: Message, default: str) -> str:
    """The topic a publication names, else the sink's."""
    return topic_of(message) or default
