"""Between AMQP's messages and ours: headers, identity, and the copy that waits in a delay queue."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from oncebox.brokers.contract import Delivery
from oncebox.errors import MessageError
from oncebox.message import Headers, Message

SHORT_BYTES_MAX = 255
NAME_BYTES_MAX = 128
KEY_HEADER = "cloudEvents_partitionkey"
STATE_HEADER = "x-oncebox"
"""On a copy that waited: what the broker would have told of the original, and can't tell of a copy."""
UNREADABLE_HEADER = "x-oncebox-unreadable-properties"

_EVENT_PREFIXES = ("ce-", "ce_", "cloudevents:", "cloudevents_")
_EVENT_ATTRIBUTES = frozenset({"id", "source", "type", "specversion"})
_ROUTING = frozenset({"CC", "BCC"})
"""Headers by which RabbitMQ routes further copies."""
_PROPERTIES = {
    "message_id": "message_id",
    "type": "message_type",
    "content_type": "content_type",
    "content_encoding": "content_encoding",
    "correlation_id": "correlation_id",
    "reply_to": "reply_to",
    "app_id": "app_id",
    "user_id": "user_id",
}
"""Of a delivery, by pamqp's names for them."""


def to_delivery(got: DeliveredMessage, queue: str, key_header: str, *, counts: bool, tag: Any) -> Delivery:
    """What arrived, as the runtime sees it. Never raises: whatever it holds, it must not stop the rest."""
    told = got.header.properties
    table: dict[str, Any] = dict(told.headers or {})
    state: Any = table.pop(STATE_HEADER, None)
    count = table.pop("x-delivery-count", 0)
    properties = {
        name: value for name, told_as in _PROPERTIES.items() if (value := getattr(told, told_as)) is not None
    }
    provenance: dict[str, Any] = {"queue": queue, "exchange": got.exchange, "routing_key": got.routing_key}
    if isinstance(told.timestamp, datetime):
        provenance["timestamp"] = told.timestamp.isoformat()
    earlier = 0
    if isinstance(state, dict):
        earlier = _whole(state.get("deliveries"))
        table = {name: value for name, value in table.items() if not _is_brokers(name)}
        kept = state.get("headers")
        table.update(kept if isinstance(kept, dict) else {})
        provenance.update(exchange=state.get("exchange"), routing_key=state.get("routing_key"))
        if not state.get("message_id", True):
            properties.pop("message_id", None)
        if state.get("user_id"):
            properties["user_id"] = state["user_id"]
    headers = headers_of(table)
    if (unreadable := getattr(got.header, "unreadable", None)) is not None:
        headers = ((UNREADABLE_HEADER, unreadable),)
    redelivered = bool(got.redelivered) or earlier > 0
    return Delivery(
        body=got.body,
        headers=headers,
        properties=properties,
        provenance=provenance,
        key=next((_text(value) for name, value in headers if name == key_header), None),
        # A classic queue only tells that there was one before; that is enough to be careful with it.
        deliveries=1 + earlier + _whole(count) if counts else 1 + redelivered,
        redelivered=redelivered,
        tag=tag,
    )


def copy_of(got: DeliveredMessage, deliveries: int) -> Basic.Properties:
    """The properties of a copy that is to wait, and to come back as if it were the original."""
    told = got.header.properties
    table: dict[str, Any] = dict(told.headers or {})
    before: Any = table.pop(STATE_HEADER, None)
    if isinstance(before, dict):
        state = {**before, "deliveries": deliveries}
        table = {name: value for name, value in table.items() if not _is_brokers(name)}
    else:
        state = {
            "deliveries": deliveries,
            "exchange": got.exchange,
            "routing_key": got.routing_key,
            "message_id": told.message_id is not None,
            # A user id that is not the publisher's own closes the channel.
            "user_id": told.user_id,
            # These would route copies elsewhere, or count as deaths of the copy.
            "headers": {name: value for name, value in table.items() if _is_brokers(name)},
        }
        table = {name: value for name, value in table.items() if not _is_brokers(name)}
    # No `expiration`: in the delay queue it would cut the delay short.
    return Basic.Properties(
        headers={**_encodable(table), STATE_HEADER: _encodable(state)},
        delivery_mode=2,
        priority=told.priority,
        timestamp=told.timestamp,
        **{name: getattr(told, name) for name in _PROPERTIES.values() if name != "user_id"},
    )


def to_amqp(message: Message) -> Basic.Properties:
    """A message's properties and headers, as a CloudEvent in AMQP's binary form where it has a source.

    `MessageError` for what AMQP can't carry.
    """
    table: dict[str, Any] = {}
    for name, value in message.headers:
        if len(name.encode()) > NAME_BYTES_MAX or name in _ROUTING:
            raise MessageError(
                f"message {message.id}: RabbitMQ takes no header named {name[:40]!r}: names have at most "
                f"{NAME_BYTES_MAX} bytes, and CC and BCC would route copies elsewhere"
            )
        # An event's own attributes are set below: those of another event must not pass for them.
        if not _is_attribute(name):
            table.setdefault(name, []).append(_value(value))
    table = {name: values[0] if len(values) == 1 else values for name, values in table.items()}
    identity = message.id
    if message.source:
        table["cloudEvents_specversion"] = "1.0"
        table["cloudEvents_id"] = message.id
        table["cloudEvents_source"] = message.source
        table["cloudEvents_type"] = message.type
    if len(identity.encode()) > SHORT_BYTES_MAX:
        if not message.source:
            raise MessageError(
                f"a message id of {len(identity.encode())} bytes: AMQP's message_id takes {SHORT_BYTES_MAX}; "
                "with a source (App(source=…)) it travels as a CloudEvent"
            )
        # The same for every resend, for consumers that know nothing of CloudEvents.
        identity = "sha256:" + hashlib.sha256(identity.encode()).hexdigest()
    if message.key is not None:
        table[KEY_HEADER] = message.key
    return Basic.Properties(
        message_id=identity,
        message_type=message.type or None,
        content_type=message.content_type,
        headers=table,
        delivery_mode=2,
    )


def headers_of(table: dict[str, Any]) -> Headers:
    """AMQP's table as pairs: an array is its name repeated, and what is not text is written as JSON."""
    pairs: list[tuple[str, bytes]] = []
    for name, value in table.items():
        each: Iterable[Any] = value if isinstance(value, list) else (value,)
        pairs += [(name, _bytes(item)) for item in each]
    return tuple(pairs)


def tolerate_unreadable_properties() -> None:
    """Have pamqp keep what it can't decode.

    It raises for a header name that is not UTF-8, or a time past the year 9999 (nanoseconds, where
    seconds are meant). The connection would die of that message, get it again, and die for ever.
    """
    if getattr(ContentHeader, "unreadable", msgspec.UNSET) is not msgspec.UNSET:
        return
    decode = ContentHeader.unmarshal

    def unmarshal(self: ContentHeader, data: bytes) -> None:
        try:
            decode(self, data)
        except (ValueError, OverflowError, OSError, RecursionError):
            if len(data) < 12:
                raise
            self.properties = Basic.Properties()
            self.unreadable = data[12:]  # type: ignore[attr-defined]

    ContentHeader.unreadable = None  # type: ignore[attr-defined]
    ContentHeader.unmarshal = unmarshal  # type: ignore[method-assign]


def _is_brokers(name: str) -> bool:
    return name in _ROUTING or name.startswith(("x-death", "x-first-death-", "x-last-death-"))


def _is_attribute(name: str) -> bool:
    lower = name.lower()
    prefix = next((prefix for prefix in _EVENT_PREFIXES if lower.startswith(prefix)), None)
    return prefix is not None and lower.removeprefix(prefix) in _EVENT_ATTRIBUTES


def _value(value: bytes) -> str | bytearray:
    """Text where it is text, so that other clients see a string; else bytes, exactly as they are."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return bytearray(value)


def _bytes(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    if value is None:
        return b""
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except (TypeError, ValueError, RecursionError):
        return repr(value).encode()


def _encodable(value: Any) -> Any:
    """As pamqp can write it again: it reads text that is not UTF-8 as bytes, but writes only bytearrays."""
    if isinstance(value, bytes):
        return bytearray(value)
    if isinstance(value, dict):
        return {name: _encodable(item) for name, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def _text(value: bytes) -> str | None:
    try:
        return value.decode() or None
    except UnicodeDecodeError:
        return None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
