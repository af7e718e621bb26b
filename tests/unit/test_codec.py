"""Payloads decode to what is annotated, or fail with a place and a reason, and never with their values."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox.codec import JSON_DEPTH_MAX, decoder, describe_error
from oncebox.errors import UndecodablePayload

CANARY = "s3cret"
NOT = "the payload does not decode: "
UNFIT = "the payload does not fit: "
DEEP = f"the payload is nested deeper than {JSON_DEPTH_MAX} levels"


@dataclass
class Order:
    id: int
    note: str = ""

    def __post_init__(self) -> None:
        if self.note == CANARY:
            raise KeyError(self.note)


class Paid(msgspec.Struct, tag="paid"):
    id: int


class Refunded(msgspec.Struct, tag="refunded", forbid_unknown_fields=True):
    id: int


class Checked(msgspec.Struct):
    name: str

    def __post_init__(self) -> None:
        raise ValueError(f"Expected `str`, got {self.name}")


class Row(TypedDict):
    id: int


class Colour(Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    id: int
    at: datetime | None = None
    prices: dict[str, float] = {}
    amount: float = pydantic.Field(default=0, alias="amountDue")

    @pydantic.field_validator("id")
    @classmethod
    def small(cls, value: int) -> int:
        if value > 1000:
            raise ValueError(f"{CANARY} {value}")
        return value


@pydantic.dataclasses.dataclass
class PydanticData:
    id: int


@pytest.mark.parametrize(
    ("annotation", "payload", "value"),
    [
        (dict, b'{"id": 7}', {"id": 7}),
        (dict[str, int], b'{"id": 7}', {"id": 7}),
        (Mapping[str, int], b'{"id": 7}', {"id": 7}),
        (list, b"[1, null]", [1, None]),
        (list[Row], b'[{"id": 7}]', [{"id": 7}]),
        (Any, b"7", 7),
        (object, b'"x"', "x"),
        (bytes, b"\xff\x00", b"\xff\x00"),
        (bytes | None, b"null", b"null"),
        (str, "déjà".encode(), "déjà"),
        (str | None, b"", ""),
        (Annotated[str, "note"], b"plain", "plain"),
        (Annotated[bytes, "note"], b"\xff", b"\xff"),
        (Order, b'{"id": 7, "unknown": 1}', Order(7)),
        (Order | None, b"null", None),
        (Order | None, b"", None),
        (Order | None, b'{"id": 7}', Order(7)),
        (Annotated[Order, "note"], b'{"id": 7}', Order(7)),
        (Paid, b'{"type": "paid", "id": 7}', Paid(7)),
        (Paid | Refunded, b'{"type": "refunded", "id": 7}', Refunded(7)),
        (Row, b'{"id": 7}', {"id": 7}),
        (Model, b'{"id": "7"}', Model(id=7)),
        (Model | None, b" null ", None),
        (list[Model], b'[{"id": 7}]', [Model(id=7)]),
        (PydanticData, b'{"id": "7"}', PydanticData(7)),
        (dict | list, b"[]", []),
        (dict, b'{"a": "\\u0000"}', {"a": "\0"}),
        (dict, b'{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
    ],
)
def test_a_payload_becomes_what_is_annotated(annotation: Any, payload: bytes, value: Any) -> None:
    decoded = decoder(annotation)(payload)
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    ("annotation", "payload", "text"),
    [
        (dict, b"", NOT + "Input data was truncated"),
        (dict, b"{", NOT + "Input data was truncated"),
        (dict, b"[]", NOT + "Expected `object`, got `array`"),
        (dict, b'{"a": NaN}', NOT + "JSON is malformed: invalid character (byte 6)"),
        (dict, b'{"a": Infinity}', NOT + "JSON is malformed: invalid character (byte 6)"),
        (Any, b"1e999", NOT + "Number out of range"),
        (Any, b"1" * 5000, NOT + "Integer value out of range"),
        (Any, b'"\xff"', "the payload is not UTF-8 (byte 0 of a string)"),
        (str, b"ok\xff", "the payload is not UTF-8 text (byte 2)"),
        (Any, b"[" * 100_000, DEEP),
        (Any, b'{"a":' * 100_000, DEEP),
        (Model, b'{"prices":' * 100_000, DEEP),
        (Order, b'{"id": "s3cret"}', NOT + "Expected `int`, got `str` at $.id"),
        (Order, b"{}", NOT + "Object missing required field `id`"),
        (Order, b'{"id": 1, "note": "s3cret"}', "the payload was refused by its type's own check (KeyError)"),
        (Checked, b'{"name": "s3cret"}', "the payload was refused by its type's own check (ValueError)"),
        (list[Row], b'[{"id": 1}, {"id": null}]', NOT + "Expected `int`, got `null` at $[1].id"),
        (dict[str, Row], b'{"s3cret": {"id": []}}', NOT + "Expected `int`, got `array` at $[...].id"),
        (dict[str, Colour], b'{"a": "s3cret"}', NOT + "a value that is not allowed at $[...]"),
        (list[Literal["a"]], b'["s3cret"]', NOT + "a value that is not allowed at $[0]"),
        (Paid | Refunded, b'{"type": "s3cret"}', NOT + "a value that is not allowed at $.type"),
        (Refunded, b'{"type": "refunded", "id": 1, "s3cret": 1}', NOT + "a value that is not allowed"),
        (list[UUID], b'["s3cret"]', NOT + "Invalid UUID at $[0]"),
        (list[datetime], b'["s3cret"]', NOT + "Invalid RFC3339 encoded datetime at $[0]"),
        (Annotated[str, msgspec.Meta(max_length=3)], b"s3cret", NOT + "Expected `str` of length <= 3"),
        (Model, b"{", UNFIT + "$ (json_invalid)"),
        (Model, b"[]", UNFIT + "$ (model_type)"),
        (Model, b'{"id": "s3cret"}', UNFIT + "id (int_parsing)"),
        (Model, b'{"id": 5000}', UNFIT + "id (value_error)"),
        (Model, b'{"id": 1, "s3cret": 1}', UNFIT + "[...] (extra_forbidden)"),
        (Model, b'{"id": 1, "prices": {"s3cret": "x"}}', UNFIT + "prices.[...] (float_parsing)"),
        (Model, b'{"id": 1, "amountDue": "x"}', UNFIT + "amountDue (float_parsing)"),
        (Model, b'{"id": 1, "amountDue": NaN}', NOT + "JSON is malformed: invalid character (byte 23)"),
        (list[Model], b'[{"id": 1}, {}]', UNFIT + "1.id (missing)"),
        (
            list[Model],
            b"[1,1,1,1,1,1,1]",
            UNFIT + ", ".join(f"{n} (model_type)" for n in range(5)) + " and 2 more",
        ),
        (Model, b'{"id": ' + b"1" * 5000 + b"}", UNFIT + "$ (json_invalid)"),
    ],
)
def test_what_does_not_decode_says_where_and_never_what(annotation: Any, payload: bytes, text: str) -> None:
    with pytest.raises(UndecodablePayload) as undecodable:
        decoder(annotation)(payload)
    error = undecodable.value
    assert str(error) == text
    # Neither in the error, nor in a chained one, nor in what would be stored of it.
    assert error.__cause__ is None
    assert error.__context__ is None
    assert CANARY not in "".join(describe_error(error))


@pytest.mark.parametrize("annotation", [Any, list, list[Model] | list])
def test_depth_is_judged_at_the_limit_and_one_over(annotation: Any) -> None:
    deepest = b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX
    assert decoder(annotation)(deepest) is not None
    with pytest.raises(UndecodablePayload, match="nested deeper than 200 levels"):
        decoder(annotation)(b"[" + deepest + b"]")


@pytest.mark.parametrize(
    "payload",
    [
        json.dumps({"text": "[" * 1000 + '\\"' + "{" * 1000}).encode(),
        json.dumps([[1]] * 1000).encode(),
        json.dumps([{"a": "]"}] * 500).encode(),
    ],
)
def test_brackets_in_text_or_side_by_side_are_not_depth(payload: bytes) -> None:
    assert decoder(Any)(payload) == json.loads(payload)


@pytest.mark.parametrize(
    "payload", [b'"' + b'\\"' * 500_000 + b"[" * 300, b'["' * 300_000, b"\\" * 500_000 + b"[" * 300]
)
def test_judging_depth_takes_linear_time_on_hostile_bytes(payload: bytes) -> None:
    with pytest.raises(UndecodablePayload):
        decoder(Any)(payload)


class Plain:
    pass


@dataclass
class Holder:
    plain: Plain


@dataclass
class Unresolved:
    other: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


class Untagged(msgspec.Struct):
    id: int


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int is a single value, and a payload is a whole message"),
        (UUID | None, "uuid.UUID | None is a single value, and a payload is a whole message"),
        (Colour, "Colour is a single value, and a payload is a whole message"),
        (Literal["a"], r"typing.Literal\['a'\] is a single value, and a payload is a whole message"),
        (type(None), "NoneType is a single value, and a payload is a whole message"),
        (Annotated[int, msgspec.Meta(gt=0)], "is a single value, and a payload is a whole message"),
        (Plain, "^Plain has no JSON form$"),
        (Holder, "^Plain, in Holder, has no JSON form$"),
        (list[Plain], "^Plain, in .*, has no JSON form$"),
        (Unresolved, r"^Unresolved can't be decoded \(NameError: name 'Nowhere' is not defined\)$"),
        (Untagged | Paid, "can't be decoded .*must be tagged"),
        (Model | Plain, "can't be decoded "),
    ],
)
def test_what_a_message_can_not_become_is_refused_when_the_decoder_is_made(
    annotation: Any, text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        decoder(annotation)


ANNOTATIONS = [
    dict,
    list,
    Any,
    str,
    bytes,
    Order,
    Order | None,
    Paid | Refunded,
    Row,
    Model,
    list[Model],
    list[Literal["a"]],
]
DECODERS = [decoder(annotation) for annotation in ANNOTATIONS]
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["id", "type", "note", "prices"]) | st.text(), inner)
    ),
    max_leaves=10,
)


@given(st.binary() | json_like.map(lambda value: json.dumps(value).encode(errors="surrogatepass")))
def test_arbitrary_bytes_decode_or_are_undecodable_and_nothing_else(payload: bytes) -> None:
    for decode in DECODERS:
        with suppress(UndecodablePayload):
            decode(payload)
