"""Ids made from what is the same for every delivery of a message. Deterministic, and injective:
parts are digested length first, so that ("a:b", "c") is not ("a", "b:c")."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from uuid import UUID

from oncebox.errors import MessageError
from oncebox.identity.fingerprints import fingerprint
from oncebox.message import MessageKey

Part = str | int | UUID
_READABLE_CHARS_MAX = 48
_UNREADABLE = re.compile(r"[^A-Za-z0-9._-]+")


def business(*parts: Part) -> str:
    """An id from a business key: `business("order", order_id, "paid")`, readable and unambiguous.

    Says that there is one such fact: a second message with the same parts is a duplicate, whoever
    sent it. Integers and UUIDs count as their text. `MessageError` for no parts, and for a part that
    is empty, None, a float or anything else without one exact text.
    """
    texts = [_text(part, place) for place, part in enumerate(parts, start=1)]
    if not texts:
        raise MessageError('business() needs its parts, for example business("order", order_id, "paid")')
    readable = ":".join(_UNREADABLE.sub("_", text) for text in texts)[:_READABLE_CHARS_MAX]
    return f"{readable}~{_digest(texts).hex()[:40]}"


def content(type: str, payload: bytes) -> str:  # noqa: A002 - the domain's word
    """An id from type and payload. Two legitimate messages with the same content collapse into one."""
    return f"sha256:{fingerprint(type, payload).hex()}"


def position(topic: str, partition: int, offset: int | str) -> str:
    """An id from where the message lies: topic, partition and offset, never the offset alone.

    Tells transport duplicates only: a producer that sends twice writes two positions. A topic that is
    deleted and made again starts over, so that its first messages look like duplicates of old ones.
    `MessageError` for a part that is missing or malformed.
    """
    _text(topic, 1)
    if type(partition) is not int or partition < 0:
        raise MessageError("position(): the partition is a whole number, 0 or more")
    # A stream's entry id ("1712-0") is text. No colon: topic and partition must stay apart from it.
    if type(offset) is int and offset >= 0:
        return f"{topic}:{partition}:{offset}"
    if type(offset) is str and offset and ":" not in offset:
        return f"{topic}:{partition}:{offset}"
    raise MessageError("position(): the offset is a whole number, 0 or more, or a stream's entry id")


def derived(message: str | MessageKey, name: Part) -> str:
    """A stable id for what a message gives rise to: the same UUID each time the message is handled.

    Pass the whole `MessageKey` where ids are unique per source only: of two sources' message "7",
    the outputs must differ. `MessageError` for an empty id or name.
    """
    if isinstance(message, MessageKey):
        _text(message.id, 1)
        origin = [message.consumer, message.source, message.id]
    else:
        origin = [_text(message, 1)]
    raw = int.from_bytes(_digest([*origin, _text(name, 2)])[:16])
    # UUID version 8 (RFC 9562): version 5's idea with SHA-256 for the hash.
    raw = raw & ~(0xF << 76) | 0x8 << 76
    raw = raw & ~(0x3 << 62) | 0x2 << 62
    return str(UUID(int=raw))


def _digest(texts: Iterable[str]) -> bytes:
    digest = sha256()
    for text in texts:
        raw = text.encode(errors="surrogatepass")
        digest.update(b"%d:%b" % (len(raw), raw))
    return digest.digest()


def _text(part: object, place: int) -> str:
    """The one exact text of a part; errors name its place and kind, never its value."""
    if isinstance(part, bool) or not isinstance(part, (str, int, UUID)):
        raise MessageError(
            f"part {place} of an id is {_kind(part)}: use text, an integer or a UUID, "
            "which have one exact spelling"
        )
    text = str.__str__(part) if isinstance(part, str) else str(part)
    if not text:
        raise MessageError(f"part {place} of an id is empty: messages that lack it would be taken for one")
    return text


def _kind(part: object) -> str:
    return "None" if part is None else f"a {type(part).__name__}"
