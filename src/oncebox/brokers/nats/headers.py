"""Between a message and what travels in a NATS header block, byte for byte in both directions.

nats-py keeps headers as a dict of text: repeats are lost and bytes that are not UTF-8 are replaced. Here
they are read from the block itself, and written in a form that nats-py passes on as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from oncebox.errors import MessageError, TooLarge
from oncebox.message import Headers, Message

ID = "Nats-Msg-Id"
KEY = "ce-partitionkey"

LINE = b"NATS/1.0\r\n"
NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# CloudEvents over NATS percent-encodes what is not printable ASCII, and the space, quote and percent sign.
_PLAIN = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


class Raw(dict[str, str]):
    """Headers as nats-py read them, where they have a status, with the block they came in."""

    block: bytes = b""


class _Exact(str):
    """A value that nats-py must neither trim nor translate; its bytes may be no UTF-8."""

    __slots__ = ()

    def strip(self, chars: str | None = None, /) -> str:
        return self

    def translate(self, table: Any, /) -> str:
        return self

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return super().encode("utf-8", "surrogateescape")


class Pairs(dict[str, Any]):
    """Headers for nats-py to write: it asks for nothing but `items`, which may repeat a name."""

    def __init__(self, pairs: Iterable[tuple[str, bytes]]) -> None:
        super().__init__()
        self.pairs = [(name, _Exact(value.decode("utf-8", "surrogateescape"))) for name, value in pairs]

    def items(self) -> Any:
        return self.pairs


def outgoing(message: Message, size_max: int) -> Pairs:
    """The header block of a message: its id for the server's own deduplication, CloudEvents attributes
    where it names its source, and its headers as they are.

    `MessageError` for what a header can't carry, `TooLarge` when the server would hang up on its size.
    """
    if message.id != message.id.strip():
        raise MessageError(
            f"message {message.id!r}: an id in {ID} can't begin or end with a space; choose another id"
        )
    pairs = [(ID, message.id.encode())]
    if message.source:
        attributes = {"specversion": "1.0", "id": message.id, "source": message.source, "type": message.type}
        pairs += [(f"ce-{name}", _quoted(value)) for name, value in attributes.items() if value]
    elif message.type:
        pairs.append(("type", message.type.encode()))
    pairs.append(("Content-Type", message.content_type.encode()))
    if message.key is not None:
        pairs.append((KEY, _quoted(message.key)))
    # The server obeys headers of its own (Nats-Rollup empties a stream): none is forwarded from a message.
    pairs += [pair for pair in message.headers if not pair[0].lower().startswith("nats-")]
    return checked(pairs, message.id, len(message.payload), size_max)


def checked(pairs: list[tuple[str, bytes]], what: str, body_bytes: int, size_max: int) -> Pairs:
    """The pairs as they travel; errors as `outgoing`."""
    size = body_bytes + len(LINE) + 2
    for name, value in pairs:
        if not NAME.fullmatch(name):
            raise MessageError(
                f"message {what!r}: NATS takes no header named {name!r}; use letters and dashes"
            )
        if b"\r" in value or b"\n" in value:
            raise MessageError(
                f"message {what!r}: header {name!r} holds a line break, which NATS can't carry"
            )
        size += len(name) + len(value) + 4
    if size > size_max:
        raise TooLarge(
            f"message {what!r} is {size:,} bytes with its headers; this server takes {size_max:,} "
            "(max_payload in its configuration)"
        )
    return Pairs(pairs)


def incoming(headers: dict[str, str] | None) -> Headers:
    """(name, bytes) pairs in the order they came; from the block where there is one."""
    if not isinstance(headers, Raw):
        return tuple((str(name), str(value).encode()) for name, value in (headers or {}).items())
    pairs = []
    for line in headers.block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            pairs.append((name.decode("utf-8", "backslashreplace"), value.removeprefix(b" ")))
    return tuple(pairs)


def first(headers: Headers, name: str) -> bytes | None:
    """The first value under a name, in any case."""
    wanted = name.lower()
    size = len(wanted)
    for key, value in headers:
        if len(key) == size and key.lower() == wanted:
            return value
    return None


def key_of(headers: Headers) -> str | None:
    """The ordering key; None where there is none, or one that is not text."""
    value = first(headers, KEY)
    try:
        return unquote_to_bytes(value).decode() if value else None
    except UnicodeDecodeError:
        return None


def _quoted(text: str) -> bytes:
    return quote(text, safe=_PLAIN).encode()
