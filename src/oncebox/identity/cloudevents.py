"""CloudEvents 1.0 as brokers carry them: attributes in headers (binary mode), or all in one JSON body."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from oncebox.codec.payloads import nested_too_deep
from oncebox.message import Headers

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
_ENCODED = "ce-"  # HTTP and NATS percent-encode the values
_PREFIXES = (_ENCODED, "ce_", "cloudevents:", "cloudevents_")  # Kafka and AMQP write plain UTF-8
_ATTRIBUTES = frozenset({"id", "source", "type"})
CONTENT_TYPE = "content-type"


class Event(NamedTuple):
    """What an event says about itself. In structured mode the payload is the event's data."""

    id: str
    source: str
    type: str
    payload: bytes
    content_type: str


class _Structured(msgspec.Struct):
    id: str
    source: str
    type: str = ""
    datacontenttype: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"")
    data_base64: str | None = None


def event(body: bytes, headers: Headers, content_type: str) -> Event | None:
    """The event in a delivery, or None where there is none with both `id` and `source`. Never raises."""
    if content_type and media(content_type) == STRUCTURED:
        return _structured(body)
    attributes = attributes_of(headers)
    if not attributes.get("id") or not attributes.get("source"):
        return None
    return Event(attributes["id"], attributes["source"], attributes.get("type", ""), body, content_type)


def attributes_of(headers: Headers) -> Mapping[str, str]:
    """`id`, `source` and `type` as binary mode has them, and the content type, where they are; the first, where one
    is repeated."""
    found: dict[str, str] = {}
    for name, value in headers:
        attribute, encoded = _attribute(name)
        if attribute and attribute not in found:
            try:
                found[attribute] = (unquote_to_bytes(value) if encoded and b"%" in value else value).decode()
            except UnicodeDecodeError:
                continue
    return found


@lru_cache(maxsize=1024)
def _attribute(name: str) -> tuple[str, bool]:
    """The attribute that a header carries ("" for none of ours), and whether it is percent-encoded."""
    lower = name.lower()
    if lower == CONTENT_TYPE:
        return lower, False
    prefix = next((prefix for prefix in _PREFIXES if lower.startswith(prefix)), lower)
    attribute = lower.removeprefix(prefix)
    return (attribute if attribute in _ATTRIBUTES else "", prefix == _ENCODED)


def _structured(body: bytes) -> Event | None:
    if nested_too_deep(body):
        return None
    try:
        event = msgspec.json.decode(body, type=_Structured)
        payload, content_type = _data(event)
    except (ValueError, RecursionError):
        return None
    if not event.id or not event.source:
        return None
    return Event(event.id, event.source, event.type, payload, content_type)


def _data(event: _Structured) -> tuple[bytes, str]:
    """The payload as binary mode would have carried it, so that both modes have one fingerprint."""
    content_type = event.datacontenttype or "application/json"
    if event.data_base64 is not None:
        return b64decode(event.data_base64, validate=True), content_type
    data = bytes(event.data)
    if data[:1] == b'"' and not media(content_type).endswith(("/json", "+json")):
        # Text of another format travels as a JSON string; its content is the payload.
        return msgspec.json.decode(data, type=str).encode(), content_type
    return data, content_type


class _Versioned(msgspec.Struct):
    specversion: str


def is_structured(body: bytes) -> bool:
    """Whether the bytes themselves are a JSON object that says it is a CloudEvent. Never raises."""
    if b'"specversion"' not in body or nested_too_deep(body):
        return False
    try:
        msgspec.json.decode(body, type=_Versioned)
    except (ValueError, RecursionError):
        return False
    return True


def is_batch(body: bytes) -> bool:
    """Whether the bytes themselves are a JSON array with a CloudEvent in it. Never raises."""
    if b'"specversion"' not in body or nested_too_deep(body):
        return False
    try:
        entries = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (ValueError, RecursionError):
        return False
    return any(is_structured(bytes(entry)) for entry in entries)


def media(content_type: str) -> str:
    """The media type alone, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def header_text(headers: Headers, name: str) -> str | None:
    """The first header of that name (case-insensitive) as text; None if missing or not UTF-8."""
    wanted = name.lower()
    return next((text_of(value) for key, value in headers if key.lower() == wanted), None)


def text_of(value: Any) -> str | None:
    """Text, or UTF-8 bytes as text; None for anything else and for nothing."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    return value if isinstance(value, str) and value else None
