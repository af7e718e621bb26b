"""From a payload's bytes to what a handler annotates. JSON is only a view of the payload.

Whatever does not decode raises `UndecodablePayload`, whose text says where and what was expected,
and never a value from the payload.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from oncebox.errors import UndecodablePayload

JSON_DEPTH_MAX = 200
"""Deepest nesting that is decoded. Far below the interpreter's own limit, which moves with the stack."""

Decode = Callable[[bytes], Any]

# Unrolled and possessive, with the end of input as a closing quote: linear in time and memory
# on any bytes, an unclosed string of escapes included.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKET = re.compile(rb"[\[{\]}]")


def nested_too_deep(payload: bytes) -> bool:
    """Whether JSON in `payload` is nested deeper than `JSON_DEPTH_MAX`; a function of the bytes alone."""
    if payload.count(b"[") + payload.count(b"{") <= JSON_DEPTH_MAX:
        return False
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", payload)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > JSON_DEPTH_MAX:
            return True
    return False


def decoder(annotation: Any) -> Decode:
    """A function from payload bytes to a value of `annotation`.

    `bytes` is the body as it is and `str` its UTF-8 text; everything else is JSON: dict, list, Any,
    dataclasses, msgspec structs, TypedDicts, pydantic models, and unions of them. `X | None` takes
    an empty body or null as None. The function raises `UndecodablePayload` and nothing else.
    TypeError here, with the reason, for what a message can't become: a single value such as int (a
    payload is a whole message), or a class, at any depth, that has no JSON form.
    """
    plain = _bare(annotation)
    if plain is bytes:
        return bytes if annotation is bytes else _converted(annotation, bytes)
    if plain is str:
        return _text if annotation is str else _converted(annotation, _text)
    if plain is object:
        annotation = Any
    decode = _pydantic(annotation) if _mentions_pydantic(annotation) else _msgspec(annotation)
    return _or_none(decode) if type(None) in _members(plain) else decode


def _bare(annotation: Any) -> Any:
    """Without `Annotated`, and without the None of an optional bytes or str."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    members = [member for member in _members(annotation) if member is not type(None)]
    return members[0] if len(members) == 1 and members[0] in (bytes, str) else annotation


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        place = error.start
    raise UndecodablePayload(f"the payload is not UTF-8 text (byte {place})")


def _converted(annotation: Any, first: Decode) -> Decode:
    """Bytes or text with constraints in its annotation, which msgspec checks."""
    return _guarded(lambda payload: msgspec.convert(first(payload), annotation))


def _or_none(decode: Decode) -> Decode:
    def optional(payload: bytes) -> Any:
        return None if payload.strip(b" \t\r\n") in (b"", b"null") else decode(payload)

    return optional


_WHOLE = (
    msgspec.inspect.AnyType,
    msgspec.inspect.CollectionType,
    msgspec.inspect.TupleType,
    msgspec.inspect.DictType,
    msgspec.inspect.StructType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.TypedDictType,
    msgspec.inspect.NamedTupleType,
    msgspec.inspect.RawType,
)


def _msgspec(annotation: Any) -> Decode:
    try:
        info = msgspec.inspect.type_info(annotation)
        decode = msgspec.json.Decoder(annotation).decode
    except Exception as error:  # a forward reference, a union that msgspec can't tell apart, …
        raise TypeError(f"{shown(annotation)} can't be decoded ({type(error).__name__}: {error})") from None
    if custom := next(_undecodable_types(info), None):
        inside = "" if custom == shown(annotation) else f", in {shown(annotation)},"
        raise TypeError(f"{custom}{inside} has no JSON form")
    members = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    if not any(isinstance(_unwrapped(member), _WHOLE) for member in members):
        raise TypeError(f"{shown(annotation)} is a single value, and a payload is a whole message")
    return _guarded(decode)


def _unwrapped(info: Any) -> Any:
    return _unwrapped(info.type) if isinstance(info, msgspec.inspect.Metadata) else info


def shown(annotation: Any) -> str:
    """An annotation as a person would write it."""
    is_class = isinstance(annotation, type) and not get_args(annotation)
    return annotation.__qualname__.rpartition("<locals>.")[2] if is_class else str(annotation)


def _undecodable_types(info: Any) -> Iterator[str]:
    """Names of classes that msgspec knows nothing about; it would fail on the first message only."""
    seen: set[int] = set()
    left = [info]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, msgspec.inspect.CustomType):
            yield shown(node.cls)
        if isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)):
            for name in node.__struct_fields__:
                child = getattr(node, name)
                left.extend(child if isinstance(child, tuple) else [child])


def _guarded(decode: Decode) -> Decode:
    """The decoder with every failure as `UndecodablePayload`.

    Raised outside the `except`, so that no chained exception carries the payload along.
    """

    def guarded(payload: bytes) -> Any:
        # As in `nested_too_deep`, before it is called: almost no payload has so many brackets.
        if payload.count(b"[") + payload.count(b"{") > JSON_DEPTH_MAX and nested_too_deep(payload):
            raise UndecodablePayload(f"the payload is nested deeper than {JSON_DEPTH_MAX} levels")
        try:
            return decode(payload)
        except UndecodablePayload:
            raise
        except MemoryError:
            raise
        except Exception as error:  # __post_init__ and validators may raise anything
            reason = _reason(error)
        raise UndecodablePayload(reason)

    return guarded


# What msgspec says about the schema or the syntax. Its other messages quote the value.
_CLEAN = re.compile(
    r"Expected `|Object missing required field `|JSON is malformed: |Input data was truncated"
    r"|Number out of range|Integer value out of range"
    r"|Invalid (?:RFC3339|ISO8601|UUID|decimal string|base64|encoded|epoch)"
)
_PLACE = re.compile(r" - at `([^`]*)`$")


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"the payload is not UTF-8 (byte {error.start} of a string)"
    if isinstance(error, RecursionError):
        return "the payload is nested too deep"
    if not isinstance(error, msgspec.MsgspecError):
        return f"the payload was refused by its type's own check ({type(error).__name__})"
    text = str(error)
    place = _PLACE.search(text)
    where = f" at {place[1]}" if place else ""
    if error.__cause__ is not None:
        return f"the payload was refused by its type's own check ({type(error.__cause__).__name__}){where}"
    if _CLEAN.match(text):
        return f"the payload does not decode: {_PLACE.sub('', text)}{where}"
    return f"the payload does not decode: a value that is not allowed{where}"


def _mentions_pydantic(annotation: Any) -> bool:
    """Without importing pydantic: models and pydantic dataclasses carry their validator."""
    if hasattr(annotation, "__pydantic_validator__"):
        return True
    return any(_mentions_pydantic(part) for part in get_args(annotation))


def _pydantic(annotation: Any) -> Decode:
    pydantic = sys.modules["pydantic"]
    try:
        adapter = pydantic.TypeAdapter(annotation)
    except Exception as error:
        raise TypeError(f"{shown(annotation)} can't be decoded ({type(error).__name__}: {error})") from None
    names: set[str] = set()

    def reason(error: Any) -> str:
        if not names:
            names.update(_schema_names(adapter))
        found = []
        for one in error.errors(include_url=False, include_context=False, include_input=False)[:5]:
            # A key that the schema does not name is data, so it is not shown.
            parts = [str(part) if isinstance(part, int) or part in names else "[...]" for part in one["loc"]]
            found.append(f"{'.'.join(parts) or '$'} ({one['type']})")
        more = f" and {error.error_count() - len(found)} more" if error.error_count() > len(found) else ""
        return f"the payload does not fit: {', '.join(found)}{more}"

    def decode(payload: bytes) -> Any:
        # pydantic takes NaN and Infinity, which are not JSON; msgspec says where they are.
        if b"NaN" in payload or b"Infinity" in payload:
            msgspec.json.decode(payload, type=msgspec.Raw)
        try:
            return adapter.validate_json(payload)
        except pydantic.ValidationError as error:
            why = reason(error)
        raise UndecodablePayload(why)

    return _guarded(decode)


def _schema_names(adapter: Any) -> Iterator[str]:
    """Every property and definition that the schema names."""
    try:
        left = [adapter.json_schema()]
    except Exception:  # a field without a JSON schema: the places are then not shown
        left = [{}]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield from node.get("properties", ())
            yield from node.get("$defs", ())
            left.extend(node.values())
        elif isinstance(node, list):
            left.extend(node)
