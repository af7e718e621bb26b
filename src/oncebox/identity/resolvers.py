"""From a delivery to (source, id, type): where to look, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from oncebox.codec.payloads import nested_too_deep
from oncebox.errors import ConfigError, MessageError
from oncebox.identity.cloudevents import CONTENT_TYPE, Event, attributes_of, event, header_text, text_of
from oncebox.identity.ids import Part, business, content, position
from oncebox.message import ID_BYTES_MAX, TYPE_BYTES_MAX, Headers, are_short, check_id, check_text

_JSON = (None, "", "application/json")


class Delivered(Protocol):
    """What is known of a delivery before anything in it is trusted."""

    @property
    def body(self) -> bytes: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def properties(self) -> Mapping[str, Any]: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...


class Envelope:
    """A delivery as resolvers see it: opened once, read as often as they like."""

    __slots__ = (
        "_json", "body", "content_type", "event", "headers", "payload", "properties", "provenance", "type",
    )  # fmt: skip

    def __init__(self, delivery: Delivered) -> None:
        self.body = delivery.body
        self.headers = delivery.headers
        self.properties = delivery.properties
        self.provenance = delivery.provenance
        self.type = ""
        """The message's type; not known yet while the type itself is being resolved."""
        declared = text_of(self.properties.get("content_type")) or self.header("content-type") or ""
        self.event: Event | None = event(self.body, self.headers, declared)
        self.payload: bytes = self.event.payload if self.event else self.body
        """The body, or the data of a structured CloudEvent."""
        self.content_type = _storable(self.event.content_type if self.event else declared)
        self._json: Any = msgspec.UNSET

    def header(self, name: str) -> str | None:
        """The first header of that name (case-insensitive) as text; None if missing or not UTF-8."""
        return header_text(self.headers, name) if self.headers else None

    def json(self) -> Any:
        """The body as JSON values; None if it is not JSON."""
        if self._json is msgspec.UNSET:
            try:
                self._json = None if nested_too_deep(self.body) else msgspec.json.decode(self.body)
            except (ValueError, RecursionError):
                self._json = None
        return self._json


def _storable(content_type: str) -> str:
    """It is only a label: one that no column takes must not cost the message."""
    try:
        check_text("content type", content_type, TYPE_BYTES_MAX)
    except MessageError:
        return "application/octet-stream"
    return content_type or "application/json"


Resolver = Callable[[Envelope], "str | tuple[str, str] | None"]
"""Finds an id, or a (source, id), or None where the message has none."""


class field(msgspec.Struct, frozen=True):  # noqa: N801 - reads as a function where it is used
    """A member of the JSON body as delivered: `field("data.id")`, `field("items.0.sku")`.

    Takes text, and integers as their digits; finds nothing in a float, a boolean or null.
    """

    path: str

    def __post_init__(self) -> None:
        if not self.path or not all(self.path.split(".")):
            raise ConfigError(f"field({self.path!r}): name the members from outside in, as in 'data.id'")

    def __call__(self, envelope: Envelope) -> str | None:
        value = envelope.json()
        for name in self.path.split("."):
            if isinstance(value, dict):
                value = value.get(name)
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                return None
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return value if isinstance(value, str) and value else None

    def __str__(self) -> str:
        return f"the field {self.path!r}"


class header(msgspec.Struct, frozen=True):  # noqa: N801
    """A header by name, case-insensitive; the first, where it is repeated."""

    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("header(''): name the header")

    def __call__(self, envelope: Envelope) -> str | None:
        return envelope.header(self.name)

    def __str__(self) -> str:
        return f"the header {self.name!r}"


def cloudevents(envelope: Envelope) -> tuple[str, str] | None:
    """CloudEvents `source` and `id`, from headers or from a structured body."""
    return (envelope.event.source, envelope.event.id) if envelope.event else None


def broker_id(envelope: Envelope) -> str | None:
    """The producer's id that the broker deduplicates by or carries: `properties["message_id"]`."""
    return text_of(envelope.properties.get("message_id"))


def carried_source(envelope: Envelope) -> str:
    """The source that a message was sent with, where the broker carries one: `properties["source"]`."""
    source = envelope.properties.get("source")
    return source if isinstance(source, str) else ""


def by_business(*parts: Part | field | header) -> Resolver:
    """A business key from parts of the message: `by_business("order", field("id"), "paid")`.

    `ConfigError` when no part comes from the message; `MessageError` for a part as in `business`.
    """
    fixed = [part for part in parts if not isinstance(part, (field, header))]
    if len(fixed) == len(parts):
        raise ConfigError(
            "by_business() without a field or header is one id for all messages; "
            'use by_business("order", field("order_id"), "paid")'
        )
    if fixed:
        business(*fixed)

    def by_business(envelope: Envelope) -> str | None:
        found = [part(envelope) if isinstance(part, (field, header)) else part for part in parts]
        return None if None in found else business(*(part for part in found if part is not None))

    return by_business


def by_content(envelope: Envelope) -> str:
    """A digest of type and payload: two legitimate identical messages become one."""
    return content(envelope.type, envelope.payload)


def by_position(envelope: Envelope) -> str | None:
    """Topic, partition and offset, or stream and entry id, as the broker adapter recorded them."""
    where: Any = envelope.provenance
    if "topic" in where:
        return position(where["topic"], where.get("partition"), where.get("offset"))
    return position(where["stream"], 0, where.get("id")) if "stream" in where else None


class Resolved(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who a delivery says it is. `id` is None when it has no usable identity, and `why` says why."""

    id: str | None
    source: str
    type: str
    payload: bytes
    """The body, or the data of a structured CloudEvent: what is fingerprinted and handled."""
    content_type: str
    why: str = ""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """How a source's messages are told apart.

    `id`: a resolver; unset, CloudEvents `source` + `id`, else the broker's id. A resolver that is
    set is the only one asked: a message it finds nothing in has no identity, instead of another one.
    `source`: the logical producer (text or a resolver), for messages that are not CloudEvents.
    `type`: text or a resolver; unset, the CloudEvents type, the broker's, the header `type`.
    """

    id: Resolver | None = None
    source: str | Resolver = ""
    type: str | Resolver | None = None

    def __post_init__(self) -> None:
        if self.id is not None and not callable(self.id):
            raise ConfigError(
                f"Identity(id={self.id!r}): one id for all messages makes them duplicates of each other; "
                "name where it is: identity.field('data.id'), identity.header('x-id') or a function"
            )
        words = (("source", self.source, ID_BYTES_MAX), ("type", self.type, TYPE_BYTES_MAX))
        for word, value, limit in words:
            if isinstance(value, str):
                check_text(word, value, limit)
            elif value is not None and not callable(value):
                raise ConfigError(f"Identity({word}={value!r}): it is text, a field, a header or a function")

    def resolve(self, delivery: Delivered) -> Resolved:
        """Who `delivery` says it is. Never raises: what can't be told is in `why`, without its values."""
        said = self.said(delivery)
        if said is not None and are_short(*said):
            id_, source, kind = said
            return Resolved(
                id=id_, source=source, type=kind, payload=delivery.body, content_type="application/json"
            )
        envelope = Envelope(delivery)
        source, id_, why = "", None, ""
        try:
            envelope.type = self._type(envelope)
            source, id_ = self._key(envelope)
        except _Unresolved as unresolved:
            why = str(unresolved)
        return Resolved(
            id=id_, source=source, type=envelope.type, payload=envelope.payload,
            content_type=envelope.content_type, why=why,
        )  # fmt: skip

    def said(self, delivery: Delivered) -> tuple[Any, str, Any] | None:
        """Id, source and type in the commonest cases, at a fraction of the cost: JSON whose id and type the broker
        carries, or the headers of an event. Unchecked. None for any doubt, which `resolve` settles."""
        source = self.source
        properties = delivery.properties
        if source is carried_source:
            source = properties.get("source") or ""
        if self.id is not None or self.type is not None or type(source) is not str:
            return None
        id_: Any = properties.get("message_id")
        kind: Any = properties.get("type")
        declared = properties.get("content_type")
        if delivery.headers:
            said = attributes_of(delivery.headers)
            declared = declared or said.get(CONTENT_TYPE)
            if "id" in said and "source" in said:
                id_, source, kind = said["id"], said["source"], said.get("type") or kind
                if not source:
                    return None
        if not kind or declared not in _JSON:
            return None  # a header may be it, or the body
        return id_, source, kind

    def _type(self, envelope: Envelope) -> str:
        if isinstance(self.type, str):
            return self.type
        if self.type is not None:
            found = _asked(self.type, envelope, "type") or ""
        elif envelope.event is not None and envelope.event.type:
            found = envelope.event.type
        else:
            found = text_of(envelope.properties.get("type")) or envelope.header("type") or ""
        if not isinstance(found, str):
            raise _Unresolved(f"no type: {_named(self.type)} gave a {type(found).__name__}, not text")
        return _checked("type", found, TYPE_BYTES_MAX)

    def _key(self, envelope: Envelope) -> tuple[str, str]:
        if self.id is not None:
            found = _asked(self.id, envelope, "id")
            if found is None:
                raise _Unresolved(f"no id: {_named(self.id)} gave none for this message")
        else:
            found = cloudevents(envelope) or broker_id(envelope)
            if found is None:
                raise _Unresolved(
                    "no id: the message has no CloudEvents id and source, and the broker carries no id of "
                    "its producer; name where it is with Identity(id=...)"
                )
        if isinstance(found, tuple) and len(found) == 2:
            source, id_ = found
        else:
            source, id_ = self._source(envelope), found
        try:
            check_id(id_)
        except MessageError as error:
            raise _Unresolved(str(error)) from None
        return _checked("source", source, ID_BYTES_MAX), id_

    def _source(self, envelope: Envelope) -> str:
        if envelope.event is not None:
            return envelope.event.source
        if isinstance(self.source, str):
            return self.source
        found = _asked(self.source, envelope, "source")
        if not isinstance(found, str):
            # Empty would put the message into another producer's namespace.
            raise _Unresolved(f"no source: {_named(self.source)} gave none for this message")
        return found


class _Unresolved(Exception):
    pass


def _asked(resolver: Resolver, envelope: Envelope, what: str) -> Any:
    try:
        return resolver(envelope)
    except Exception as error:  # a message that a user's function stumbles over is kept, not a crash
        reason = f"no {what}: {_named(resolver)} failed ({type(error).__name__})"
    raise _Unresolved(reason)


def _checked(what: str, value: str, bytes_max: int) -> str:
    try:
        check_text(what, value, bytes_max)
    except MessageError as error:
        raise _Unresolved(str(error)) from None
    return value


def _named(resolver: Any) -> str:
    if isinstance(resolver, (field, header)):
        return str(resolver)
    return f"the function {getattr(resolver, '__name__', type(resolver).__name__)}"
