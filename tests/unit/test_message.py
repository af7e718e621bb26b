"""A message takes what can be stored and compared, and says clearly what it does not take."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from oncebox.errors import MessageError, TooLarge
from oncebox.message import (
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    ID_BYTES_MAX,
    TYPE_BYTES_MAX,
    Message,
    MessageKey,
)


@dataclass
class Order:
    id: int


class Paid(msgspec.Struct):
    id: int


class Model(pydantic.BaseModel):
    id: int


@pytest.mark.parametrize(
    ("given", "held"),
    [
        (b"\xff\x00raw", b"\xff\x00raw"),
        (bytearray(b"raw"), b"raw"),
        (memoryview(b"raw"), b"raw"),
        ("déjà", "déjà".encode()),
        ({"id": 7}, b'{"id":7}'),
        ([1, None], b"[1,null]"),
        (Order(7), b'{"id":7}'),
        (Paid(7), b'{"id":7}'),
        (Model(id=7), b'{"id":7}'),
    ],
)
def test_a_payload_is_held_as_bytes(given: Any, held: bytes) -> None:
    assert Message(id="1", payload=given).payload == held


@pytest.mark.parametrize("payload", [object(), {1, object()}, {"deep": lambda: 1}])
def test_a_payload_without_a_json_form_is_refused_without_being_shown(payload: Any) -> None:
    with pytest.raises(MessageError, match="has no JSON form") as refused:
        Message(id="1", payload=payload)
    assert "0x" not in str(refused.value)


@pytest.mark.parametrize(
    ("identity", "text"),
    [
        ("", "can't be empty"),
        ("a\0b", "NUL"),
        ("\ud800", "lone surrogate"),
        (7, "is text, not int"),
        (b"7", "is text, not bytes"),
        (None, "is text, not NoneType"),
    ],
)
def test_an_id_that_can_not_be_a_key_is_refused(identity: Any, text: str) -> None:
    with pytest.raises(MessageError, match=text):
        Message(id=identity)


def test_limits_are_in_bytes_and_hold_at_the_limit_and_one_over() -> None:
    Message(
        id="é" * (ID_BYTES_MAX // 2),
        source="s" * ID_BYTES_MAX,
        key="k" * ID_BYTES_MAX,
        type="t" * TYPE_BYTES_MAX,
    )
    over: list[dict[str, Any]] = [
        {"id": "é" * (ID_BYTES_MAX // 2) + "a"},
        {"id": "1", "source": "s" * (ID_BYTES_MAX + 1)},
        {"id": "1", "key": "k" * (ID_BYTES_MAX + 1)},
        {"id": "1", "type": "t" * (TYPE_BYTES_MAX + 1)},
    ]
    for words in over:
        with pytest.raises(TooLarge, match="the limit is"):
            Message(**words)


def test_headers_are_bounded_in_number_and_bytes() -> None:
    assert len(Message(id="1", headers=(("a", b""),) * HEADERS_MAX).headers) == HEADERS_MAX
    with pytest.raises(TooLarge, match=f"129 headers; the limit is {HEADERS_MAX}"):
        Message(id="1", headers=(("a", b""),) * (HEADERS_MAX + 1))
    Message(id="1", headers=(("a", b"x" * (HEADER_BYTES_MAX - 1)),))
    with pytest.raises(TooLarge, match="65,537 bytes; the limit is 65,536"):
        Message(id="1", headers=(("a", b"x" * HEADER_BYTES_MAX),))


@pytest.mark.parametrize("headers", [(("a", b"1", "c"),), (("a",),), ((),), (5,), 7])
def test_headers_that_are_no_pairs_are_refused(headers: Any) -> None:
    with pytest.raises(MessageError, match="pairs"):
        Message(id="1", headers=headers)


def test_headers_keep_order_repeats_and_bytes_that_are_not_text() -> None:
    pairs: Any = [("b", b"\xff"), ("a", "text"), ("b", b"2")]
    assert Message(id="1", headers=pairs).headers == (("b", b"\xff"), ("a", b"text"), ("b", b"2"))


def test_pairs_of_headers_are_held_as_tuples_of_text_and_bytes() -> None:
    given: Any = (["a", b"1"], ("b", bytearray(b"2")), ("c", "3"))
    assert Message(id="1", headers=given).headers == (("a", b"1"), ("b", b"2"), ("c", b"3"))
    assert {type(pair) for pair in Message(id="1", headers=given).headers} == {tuple}


def test_a_header_is_found_in_any_case() -> None:
    message = Message(id="1", headers=(("X-Id", b"1"), ("x-id", b"2"), ("\u0130d", b"3"), ("\u212aey", b"4")))
    assert message.header("X-ID") == b"1"
    assert message.header("\u0130D") == b"3"
    assert message.header("key") == b"4"  # the sign for kelvin is a K
    assert message.header("x-i") is None


def test_headers_may_be_a_mapping() -> None:
    headers: Any = {"Content-Type": "text/plain", "n": 7}
    message = Message(id="1", headers=headers)
    assert message.headers == (("Content-Type", b"text/plain"), ("n", b"7"))
    assert message.header("content-TYPE") == b"text/plain"
    assert message.header("absent") is None


@pytest.mark.parametrize(
    ("one", "other"), [("abc", "ABC"), ("abc", "abc "), ("é", "e\u0301"), ("A", "\u0410")]
)
def test_ids_are_never_normalised(one: str, other: str) -> None:
    assert Message(id=one).id != Message(id=other).id
    assert MessageKey("c", "", one) != MessageKey("c", "", other)


def test_a_key_keeps_its_parts_apart() -> None:
    assert MessageKey("c", "a:b", "c") != MessageKey("c", "a", "b:c")


def test_a_message_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        Message(id="1").id = "2"  # type: ignore[misc]
