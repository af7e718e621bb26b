"""Between a message and the fields of a stream's entry.

An entry of ours has the fields `id`, `type`, `source`, `key`, `content_type` and `payload`, and one
`header:NAME` per header. Of other producers' entries, those fields mean the same and all others are
headers; where there is no payload, the body is the JSON object of all fields.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncebox.brokers.contract import Delivery
from oncebox.message import Message

PAYLOAD = "payload"
_HEADER = b"header:"
_WORDS = {
    b"id": "message_id",
    b"type": "type",
    b"source": "source",
    b"content_type": "content_type",
    b"key": "key",
}

Fields = Sequence[bytes]
"""Names and values by turns, as Redis keeps them."""
_Pairs = list[tuple[bytes, bytes]]


def fields_of(message: Message) -> list[bytes]:
    """What to append for a message."""
    fields = [b"id", message.id.encode()]
    if message.type:
        fields += [b"type", message.type.encode()]
    if message.source:
        fields += [b"source", message.source.encode()]
    if message.key is not None:
        fields += [b"key", message.key.encode()]
    fields += [b"content_type", message.content_type.encode(), PAYLOAD.encode(), message.payload]
    for name, value in message.headers:
        fields += [_HEADER + name.encode("utf-8", "surrogatepass"), value]
    return fields


def delivery_of(fields: Fields, payload: str, provenance: dict[str, object], count: int) -> Delivery:
    """The delivery of an entry; its tag is (entry id, count)."""
    wanted = payload.encode()
    body: bytes | None = None
    headers: _Pairs = []
    plain: _Pairs = []
    others: _Pairs = []
    words: dict[str, str] = {}
    for pair in zip(fields[::2], fields[1::2], strict=True):
        name, value = pair
        if name.startswith(_HEADER):
            headers.append((name.removeprefix(_HEADER), value))
            continue
        plain.append(pair)
        word = _WORDS.get(name)
        if word is not None:
            try:
                words.setdefault(word, value.decode())
            except UnicodeDecodeError:
                word = None
        if name == wanted:
            body = value if body is None else body
        elif word is None:
            others.append(pair)
    if body is not None:
        headers += others
    elif (body := _as_json(plain)) is None:
        headers += plain
    return Delivery(
        body=body or b"",
        headers=tuple([(name.decode("utf-8", "backslashreplace"), value) for name, value in headers]),
        key=words.pop("key", None),
        properties=words,
        provenance=provenance,
        deliveries=count,
        redelivered=count > 1,
        tag=(provenance["id"], count),
    )


def _as_json(plain: _Pairs) -> bytes | None:
    """The fields as one JSON object; None where that would lose something."""
    if not plain or len(dict(plain)) < len(plain):
        return None
    if not all(_is_text(name) and _is_text(value) for name, value in plain):
        return None
    return msgspec.json.encode({name.decode(): value.decode() for name, value in plain})


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
