"""A message as SQS carries it: text, ten attributes at most, and sometimes an SNS envelope around it.

What SQS has no place for (bytes that are not text, empty bodies, repeated or many headers) travels in
attributes that begin with `oncebox-`. Reading never raises: what can't be understood stays as it came.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import msgspec

from oncebox.brokers.contract import Delivery
from oncebox.errors import MessageError, TooLarge
from oncebox.message import Headers, Message

ATTRIBUTES_MAX = 10
BYTES_MAX = 1024 * 1024
"""A message and a batch, attributes included, as SQS takes them since August 2025."""
BYTES_MAX_BEFORE = 256 * 1024
"""The same before then, and still with many queues and emulators."""

ID_ATTRIBUTES = ("message-id", "message_id")
_KEY = "oncebox-key"
_ENCODING = "oncebox-encoding"
_HEADERS = "oncebox-headers"
_REASON = "oncebox-reason"
_OURS = frozenset({_KEY, _ENCODING, _HEADERS})
_ALONE = "oncebox-alone-"
"""The group of a message without a key: SQS asks for one, and one of its own keeps nobody waiting."""

_NOT_TEXT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"(?!aws\.|amazon\.)[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE)
_TOKEN = re.compile(r"[!-~]{1,128}")
_PACKED = msgspec.json.Decoder(list[tuple[str, bytes]])


class _Attribute(msgspec.Struct):
    kind: str = msgspec.field(name="Type")
    value: str = msgspec.field(name="Value")


class _Notification(msgspec.Struct, tag="Notification", tag_field="Type"):
    """What SNS puts around a message, unless the subscription delivers it raw."""

    id: str = msgspec.field(name="MessageId")
    topic: str = msgspec.field(name="TopicArn")
    message: str = msgspec.field(name="Message")
    timestamp: str = msgspec.field(name="Timestamp")
    subject: str | None = msgspec.field(name="Subject", default=None)
    attributes: dict[str, _Attribute] = msgspec.field(name="MessageAttributes", default={})


_ENVELOPE = msgspec.json.Decoder(_Notification)


def delivery(raw: Mapping[str, Any], queue: str, *, unwrap_sns: bool) -> Delivery:
    """What SQS handed out, as oncebox sees it. Never raises, whatever the message holds."""
    system: Mapping[str, str] = raw.get("Attributes") or {}
    body = str(raw.get("Body") or "").encode(errors="surrogatepass")
    bodies = [body]
    attributes = {name: _value(each) for name, each in (raw.get("MessageAttributes") or {}).items()}
    provenance = {"queue": queue, "message_id": raw.get("MessageId")}
    for name, attribute in (("sent", "SentTimestamp"), ("sequence", "SequenceNumber")):
        if attribute in system:
            provenance[name] = system[attribute]
    if unwrap_sns and (notification := _notification(body)) is not None:
        body = notification.message.encode(errors="surrogatepass")
        bodies.append(body)
        attributes |= {name: _sns_value(each) for name, each in notification.attributes.items()}
        provenance |= {"sns_topic": notification.topic, "sns_message_id": notification.id}
        if notification.subject is not None:
            provenance["sns_subject"] = notification.subject
    headers = _headers(attributes)
    deliveries = _count(system.get("ApproximateReceiveCount"))
    return Delivery(
        body=_decoded(body, attributes),
        headers=headers,
        properties=_properties(headers, system.get("MessageDeduplicationId"), bodies),
        provenance=provenance,
        key=_key(attributes, system.get("MessageGroupId"), fifo=queue.endswith(".fifo")),
        deliveries=deliveries,
        redelivered=deliveries > 1,
    )


def _notification(body: bytes) -> _Notification | None:
    if not body.lstrip().startswith(b"{") or b'"TopicArn"' not in body:
        return None
    try:
        return _ENVELOPE.decode(body)
    except (ValueError, RecursionError):
        return None


def _value(attribute: Mapping[str, Any]) -> bytes:
    value = attribute.get("BinaryValue")
    if isinstance(value, bytes):
        return value
    return str(attribute.get("StringValue") or "").encode(errors="surrogatepass")


def _sns_value(attribute: _Attribute) -> bytes:
    if attribute.kind.startswith("Binary"):
        try:
            return b64decode(attribute.value, validate=True)
        except binascii.Error:
            pass
    return attribute.value.encode(errors="surrogatepass")


def _headers(attributes: Mapping[str, bytes]) -> Headers:
    """Attributes by name, since SQS keeps no order of them; then those that were packed, as they were."""
    plain = [(name, attributes[name]) for name in sorted(attributes) if name not in _OURS]
    if _HEADERS in attributes:
        try:
            plain += _PACKED.decode(attributes[_HEADERS])
        except ValueError:
            plain.append((_HEADERS, attributes[_HEADERS]))
    return tuple(plain)


def _decoded(body: bytes, attributes: Mapping[str, bytes]) -> bytes:
    if attributes.get(_ENCODING) != b"base64":
        return body
    try:
        return b64decode(body.strip(), validate=True)
    except binascii.Error:
        return body


def _properties(headers: Headers, deduplication_id: str | None, bodies: list[bytes]) -> dict[str, Any]:
    named: dict[str, bytes] = {}
    for name, value in headers:
        named.setdefault(name.lower(), value)
    found: dict[str, Any] = {}
    for name in ID_ATTRIBUTES:
        if named.get(name):
            found["message_id"] = _as_text(named[name])
            break
    else:
        # A queue with content-based deduplication makes an id up from the body, and two legitimate
        # messages of the same content would be one.
        if deduplication_id and deduplication_id not in map(_digest, bodies):
            found["message_id"] = deduplication_id
    for name, header in (("type", "type"), ("content_type", "content-type")):
        if header in named:
            found[name] = _as_text(named[header])
    return found


def _as_text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value  # resolvers say that it is not text


def _key(attributes: Mapping[str, bytes], group: str | None, *, fifo: bool) -> str | None:
    if _KEY in attributes:
        return attributes[_KEY].decode(errors="replace")
    # In a standard queue a group only says who is to be served fairly, not what is in order.
    return None if not fifo or not group or group.startswith(_ALONE) else group


def _count(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 1


def entry(message: Message, *, fifo: bool, bytes_max: int = BYTES_MAX) -> tuple[dict[str, Any], int]:
    """The parameters that send `message`, and its size as SQS counts it.

    `TooLarge` over `bytes_max`, `MessageError` for what SQS can't carry.
    """
    text, encoded = _text(message.payload)
    own = _own(message)
    if encoded:
        own[_ENCODING] = "base64"
    parameters: dict[str, Any] = {"MessageBody": text}
    if fifo:
        token = _token(message.id) if not message.source else _digest(_joined(message.source, message.id))
        group = _ALONE + _digest(token.encode())[:32] if message.key is None else _token(message.key)
        parameters |= {"MessageDeduplicationId": token, "MessageGroupId": group}
        if message.key is not None and group != message.key:
            own[_KEY] = message.key
    elif message.key is not None:
        own[_KEY] = message.key
    attributes = {name: _attribute(value.encode()) for name, value in own.items() if value}
    taken = {name.lower() for name in attributes}
    headers = [(name, value) for name, value in message.headers if name.lower() not in taken]
    attributes |= _carried(headers, ATTRIBUTES_MAX - len(attributes))
    parameters["MessageAttributes"] = attributes
    size = len(text.encode()) + sum(_attribute_bytes(name, each) for name, each in attributes.items())
    if size > bytes_max:
        raise TooLarge(
            f"a message of {size:,} bytes as SQS counts them; the queue takes {bytes_max:,} (MaximumMessageSize, "
            f"which can be {BYTES_MAX:,} at most, {BYTES_MAX_BEFORE:,} before August 2025): keep the payload "
            "elsewhere, and send where it is"
        )
    return parameters, size


def as_it_came(raw: Mapping[str, Any], reason: str, *, fifo: bool) -> dict[str, Any]:
    """The parameters that send what SQS handed out once more, with the reason why where there is room for it."""
    attributes = {
        name: {part: each[part] for part in ("DataType", "StringValue", "BinaryValue") if part in each}
        for name, each in (raw.get("MessageAttributes") or {}).items()
    }
    if len(attributes) < ATTRIBUTES_MAX:
        attributes[_REASON] = _attribute(reason.encode())
    parameters = {"MessageBody": raw["Body"], "MessageAttributes": attributes}
    if fifo:
        system = raw.get("Attributes") or {}
        parameters |= {
            "MessageDeduplicationId": system.get("MessageDeduplicationId") or raw["MessageId"],
            "MessageGroupId": system.get("MessageGroupId") or _ALONE + raw["MessageId"],
        }
    return parameters


def _own(message: Message) -> dict[str, str]:
    """Identity and type as attributes: as CloudEvents has them where the message names a source."""
    if message.source:
        own = {"ce_specversion": "1.0", "ce_id": message.id, "ce_source": message.source}
        own["ce_type"] = message.type
    else:
        own = {"message-id": message.id, "type": message.type}
    own["content-type"] = message.content_type
    return own


def _text(payload: bytes) -> tuple[str, bool]:
    """The body as SQS takes it, and whether it had to be encoded for that."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = ""
    if text and _NOT_TEXT.search(text) is None:
        return text, False
    return b64encode(payload).decode() or " ", True  # SQS refuses an empty body


def _carried(headers: list[tuple[str, bytes]], room: int) -> dict[str, Any]:
    """Headers as attributes that anyone can read, or all of them packed into one where that would lose some."""
    names = {name for name, _ in headers}
    if len(names) == len(headers) <= room and all(value and _is_name(name) for name, value in headers):
        return {name: _attribute(value) for name, value in headers}
    try:
        packed = msgspec.json.encode(headers)
    except (UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise MessageError("a header's name holds a lone surrogate, which is not text") from error
    return {_HEADERS: _attribute(packed)}


def _is_name(name: str) -> bool:
    return len(name) <= 256 and _NAME.fullmatch(name) is not None and name not in _OURS


def _attribute(value: bytes) -> dict[str, Any]:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if _NOT_TEXT.search(text) is None:
        return {"DataType": "String", "StringValue": text}
    return {"DataType": "Binary", "BinaryValue": value}


def _attribute_bytes(name: str, attribute: Mapping[str, Any]) -> int:
    return len(name) + len(attribute["DataType"]) + len(_value(attribute))


def _token(text: str) -> str:
    """What SQS takes as a deduplication or group id: the text itself, or its digest."""
    return text if _TOKEN.fullmatch(text) and not text.startswith(_ALONE) else _digest(text.encode())


def _joined(*parts: str) -> bytes:
    return b"".join(b"%d:%b" % (len(raw), raw) for raw in map(str.encode, parts))


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
