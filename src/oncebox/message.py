"""A message as oncebox sees it: identity, type, raw bytes, and where it came from.

Plain frozen values. Payloads stay bytes from broker to table; JSON is only a view of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from oncebox.errors import MessageError, TooLarge

ID_BYTES_MAX = 512
"""Longest message id, source or ordering key, in UTF-8 bytes (an index row holds about 2,700)."""
TYPE_BYTES_MAX = 255
NAME_BYTES_MAX = 63
HEADERS_MAX = 128
HEADER_BYTES_MAX = 64 * 1024
PAYLOAD_BYTES_MAX = 16 * 1024 * 1024
SHORT = 60
"""Characters that are within every limit, whatever they are."""

Headers = tuple[tuple[str, bytes], ...]


class MessageKey(NamedTuple):
    """What deduplication compares. Separate parts, never joined: ("a:b","c") is not ("a","b:c")."""

    consumer: str
    source: str
    id: str


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message. `payload` takes bytes, or anything JSON can say, and holds bytes.

    Raises `MessageError` for an id, type, source or header that can't be taken, and `TooLarge`
    for what is over a limit.
    """

    id: str
    type: str = ""
    source: str = ""
    payload: bytes = b""
    headers: Headers = ()
    key: str | None = None
    """Ordering key, as the broker or the producer set it."""
    content_type: str = "application/json"
    provenance: dict[str, Any] = {}
    """Where it came from (topic, partition, offset, queue …), for people; never identity."""
    deliveries: int = 1
    """How often the broker says it has delivered this, 1 where it does not say."""
    attempt: int = 1
    replay: bool = False

    if TYPE_CHECKING:
        # What the constructor takes is wider than what the fields hold: it encodes at once.
        def __init__(
            self,
            *,
            id: str,  # noqa: A002 - the field's own name
            type: str = "",  # noqa: A002
            source: str = "",
            payload: object = b"",
            headers: Mapping[str, object] | Iterable[tuple[str, object]] = (),
            key: str | None = None,
            content_type: str = "application/json",
            provenance: dict[str, Any] = {},  # noqa: B006 - as msgspec copies it
            deliveries: int = 1,
            attempt: int = 1,
            replay: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        force = msgspec.structs.force_setattr
        if type(self.payload) is not bytes:
            force(self, "payload", encode_payload(self.payload))
        headers = self.headers
        if headers and not _are_plain(headers):
            headers = header_pairs(headers)
            force(self, "headers", headers)
            check_headers(headers)
        key = self.key
        if (
            self.content_type != "application/json"
            or not are_short(self.id, self.source, self.type)
            or (key is not None and not are_short(key, "", ""))
        ):
            self._check()

    def _check(self) -> None:
        """What each part is refused for, one by one."""
        check_id(self.id)
        if self.source:
            check_text("source", self.source, ID_BYTES_MAX)
        if self.type:
            check_text("type", self.type, TYPE_BYTES_MAX)
        if self.key is not None:
            check_text("key", self.key, ID_BYTES_MAX)
        if self.content_type != "application/json":
            check_text("content type", self.content_type, TYPE_BYTES_MAX)

    def header(self, name: str) -> bytes | None:
        """The first header of that name (case-insensitive), or None."""
        wanted = name.lower()
        # No other length is the same name in another case, as long as the name is ASCII.
        size = len(wanted) if wanted.isascii() else 0
        for key, value in self.headers:
            if (not size or len(key) == size) and key.lower() == wanted:
                return value
        return None


def encode_payload(value: Any) -> bytes:
    """Bytes as they are, text as UTF-8, anything else as JSON; MessageError if it has no JSON form."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    try:
        if isinstance(value, str):
            return value.encode()
        if hasattr(value, "model_dump_json"):
            return str(value.model_dump_json()).encode()
        encoded = msgspec.json.encode(value)
        if b"null" in encoded and _has_no_json_form(msgspec.to_builtins(value)):
            raise ValueError("NaN and infinity")
        return encoded
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise MessageError(
            f"payload of type {type(value).__name__} has no JSON form ({type(error).__name__}); "
            "pass bytes, or something msgspec can encode"
        ) from error


def _has_no_json_form(value: Any) -> bool:
    """NaN and infinity, anywhere: msgspec writes null for them, which is another message."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_no_json_form, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_has_no_json_form, value))


def header_pairs(headers: Any) -> Headers:
    """A mapping or pairs, as (name, bytes) pairs; order and repeats are kept."""
    pairs: Iterable[tuple[Any, Any]] = headers.items() if isinstance(headers, Mapping) else headers
    try:
        named = [(name, value) for name, value in pairs]
    except (TypeError, ValueError):
        raise MessageError("headers are a mapping, or pairs of a name and a value") from None
    return tuple(
        (name, value) if type(name) is str and type(value) is bytes else (str(name), encode_payload(value))
        for name, value in named
    )


def _are_plain(headers: Any) -> bool:
    """Whether they are pairs of text and bytes already, and within the limits. False for any doubt."""
    if type(headers) is not tuple or len(headers) > HEADERS_MAX:
        return False
    size = 0
    for pair in headers:
        if type(pair) is not tuple or len(pair) != 2:
            return False
        name, value = pair
        if type(name) is not str or type(value) is not bytes:
            return False
        size += len(name) + len(value)
    return size <= HEADER_BYTES_MAX


def are_short(id: object, source: object, kind: object) -> bool:  # noqa: A002
    """Whether all three are text that every column takes, and the first is not empty: told at once for what
    is short and printable, which holds neither a NUL nor a lone surrogate. False for any doubt."""
    if type(id) is not str or type(source) is not str or type(kind) is not str or not id:
        return False
    whole = id + source + kind
    return len(whole) <= (TYPE_BYTES_MAX if whole.isascii() else SHORT) and whole.isprintable()


def check_id(value: object) -> None:
    """Refuse what can't be a key: not text, empty, with NUL, over-long. Never normalises."""
    if not isinstance(value, str):
        raise MessageError(
            f"a message id is text, not {type(value).__name__}; convert it at the producer, so that "
            "every consumer sees the same id"
        )
    if not value:
        raise MessageError("a message id can't be empty: set the producer's id, or an identity resolver")
    check_text("id", value, ID_BYTES_MAX)


def check_text(what: str, value: object, bytes_max: int) -> None:
    """Text that fits a key column: no NUL (PostgreSQL can't store it), encodable, within the limit."""
    if not isinstance(value, str):
        raise MessageError(f"a message's {what} is text, not {type(value).__name__}")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise MessageError(f"a message's {what} holds a lone surrogate, which is not text") from error
    if "\0" in value:
        raise MessageError(f"a message's {what} can't hold a NUL character")
    if size > bytes_max:
        raise TooLarge(f"a message's {what} is {size:,} bytes; the limit is {bytes_max:,}")


def check_headers(headers: Headers) -> None:
    """Bounded in number and bytes, so that one message can't fill a row."""
    if len(headers) > HEADERS_MAX:
        raise TooLarge(f"a message has {len(headers):,} headers; the limit is {HEADERS_MAX}")
    size = sum(len(name) + len(value) for name, value in headers)
    if size > HEADER_BYTES_MAX:
        raise TooLarge(f"a message's headers are {size:,} bytes; the limit is {HEADER_BYTES_MAX:,}")
