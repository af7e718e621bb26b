"""Which lane a message belongs to, and which place in it: read from the message, never guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from oncebox.codec.payloads import nested_too_deep
from oncebox.errors import ConfigError, MessageError
from oncebox.identity.resolvers import field, header
from oncebox.message import ID_BYTES_MAX, Message, check_text

Place = tuple[str | None, int | None]
_HEADER = "header:"
_BIGINT = 2**63


class _Seen:
    """A message as `field` and `header` see it: its payload, opened once."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._json: Any = msgspec.UNSET

    def header(self, name: str) -> str | None:
        value = self._message.header(name)
        return value.decode("utf-8", "replace") if value is not None else None

    def json(self) -> Any:
        if self._json is msgspec.UNSET:
            try:
                deep = nested_too_deep(self._message.payload)
                self._json = None if deep else msgspec.json.decode(self._message.payload)
            except (ValueError, RecursionError):
                self._json = None
        return self._json


def place_reader(order_by: str | None, key: Any, sequence: Any) -> Callable[[Message], Place]:
    """A function from a message to its (lane, version).

    `key` and `sequence` are a member of the payload (`"case.id"`), `"header:name"`, or a function of the
    `Message`; `key=None` is the broker's own key. By key, a message without one is not ordered. By
    sequence it needs both, or `MessageError` says which is missing.
    """
    if order_by is None:
        return lambda message: (None, None)
    key_of = _reader("key", key) if key is not None else None
    version_of = _reader("sequence", sequence) if order_by == "sequence" else None

    def place(message: Message) -> Place:
        seen = _Seen(message)
        lane = message.key if key_of is None else _text(key_of(message, seen))
        if lane is not None:
            check_text("key", lane, ID_BYTES_MAX)
        if version_of is None:
            return lane or None, None
        if not lane:
            raise MessageError(f"a message ordered by sequence needs a key: {_said('key', key)} gave none")
        return lane, _version(version_of(message, seen), _said("sequence", sequence))

    return place


def _reader(word: str, said: Any) -> Callable[[Message, _Seen], Any]:
    if isinstance(said, str) and said:
        found: Any = header(said.removeprefix(_HEADER)) if said.startswith(_HEADER) else field(said)
        return lambda message, seen: found(seen)
    if callable(said):
        return lambda message, seen: _called(word, said, message)
    raise ConfigError(
        f'{word}={said!r}: it is a payload member ("case.id"), "header:name", or a function of the message'
    )


def _called(word: str, function: Callable[[Message], Any], message: Message) -> Any:
    try:
        return function(message)
    except Exception as error:  # a message that a user's function stumbles over is kept, not a crash
        name = getattr(function, "__name__", type(function).__name__)
        raise MessageError(f"no {word}: the function {name} failed ({type(error).__name__})") from None


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def _version(value: Any, said: str) -> int:
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -_BIGINT < value < _BIGINT - 1:
        raise MessageError(
            f"a message ordered by sequence needs a whole number as its version: {said} gave none"
        )
    return value


def _said(word: str, said: Any) -> str:
    if said is None:
        return "the broker"
    if isinstance(said, str):
        return f"{word}={said!r}"
    return f"the function {getattr(said, '__name__', type(said).__name__)}"
