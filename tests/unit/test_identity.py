"""Fingerprints and ids: the same for the same message, different for any other."""

import json
import random
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox.brokers.contract import Delivery
from oncebox.errors import ConfigError, MessageError
from oncebox.identity import Identity, business, content, derived, fingerprint, position
from oncebox.message import ID_BYTES_MAX, Message, MessageKey

exact_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same JSON value with its keys in another order."""
    if isinstance(value, list):
        return [shuffled(item, chance) for item in value]
    if isinstance(value, dict):
        keys = list(value)
        chance.shuffle(keys)
        return {key: shuffled(value[key], chance) for key in keys}
    return value


def canonical(payload: bytes | str) -> bytes:
    raw = payload.encode() if isinstance(payload, str) else payload
    return fingerprint("order.paid", raw, "canonical")


def test_a_fingerprint_is_stable_across_releases() -> None:
    # Rows of earlier versions are compared with it: a change here turns duplicates into conflicts.
    assert fingerprint("a", b"b").hex() == "78901c91d9fe6a7d0ea14356d6ccde1dffcfb02d97ef138182ba38e91bccc29d"
    assert fingerprint("a", b'{"b": 1}', "canonical") == fingerprint("a", b'{"b":1}')


@given(st.tuples(st.text(), st.binary()), st.tuples(st.text(), st.binary()))
def test_a_fingerprint_is_equal_only_for_the_same_type_and_payload(
    one: tuple[str, bytes], other: tuple[str, bytes]
) -> None:
    assert len(fingerprint(*one)) == 32
    assert (fingerprint(*one) == fingerprint(*other)) == (one == other)


@given(st.text(max_size=5), st.binary(max_size=5))
def test_type_and_payload_do_not_run_into_each_other(kind: str, payload: bytes) -> None:
    shifted = kind + payload[:1].decode("latin-1")
    assert not payload or fingerprint(kind, payload) != fingerprint(shifted, payload[1:])


@given(exact_json, st.randoms(use_true_random=False), st.sampled_from([None, 0, 3]), st.booleans())
def test_whitespace_key_order_and_escapes_do_not_count_in_canonical_json(
    value: Any, chance: random.Random, indent: int | None, ascii_only: bool
) -> None:
    other = json.dumps(shuffled(value, chance), indent=indent, ensure_ascii=ascii_only)
    assert canonical(json.dumps(value)) == canonical(other)


@given(exact_json, exact_json)
def test_other_json_has_another_canonical_fingerprint(one: Any, other: Any) -> None:
    # Compared as text with sorted keys, as Python takes True for 1; 1.0 and 1 are one number in JSON.
    texts = [json.dumps(value, sort_keys=True, ensure_ascii=True) for value in (one, other)]
    if json.loads(texts[0], parse_float=str, parse_int=str) != json.loads(
        texts[1], parse_float=str, parse_int=str
    ):
        assert canonical(texts[0]) != canonical(texts[1]) or numbers(texts[0]) == numbers(texts[1])


def numbers(text: str) -> Any:
    return json.loads(text, parse_int=float, parse_float=float)


@pytest.mark.parametrize(("one", "same"), [("1.0", "1"), ("-0.0", "0"), ("1e2", "100"), ('"\\u0041"', '"A"')])
def test_spellings_of_one_value_are_one_in_canonical_json(one: str, same: str) -> None:
    assert canonical(one) == canonical(same)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("9007199254740993", "9007199254740992"),  # one double, but two integers
        ('{"a":1,"a":2}', '{"a":2}'),
        ("NaN", "null"),
        ("1e999", "1e998"),
        ('"\\ud800"', '"\\ud801"'),
        ("1" * 5000, "2" * 5000),
        ('{"a": 1', '{"a":1'),
        ("\ufeff{}", "{}"),
        ("[" * 201 + "]" * 201, "[" * 201 + " " + "]" * 201),
        ("", " "),
    ],
)
def test_what_has_no_canonical_form_is_compared_byte_by_byte(one: str, other: str) -> None:
    assert canonical(one) == fingerprint("order.paid", one.encode())
    assert canonical(one) != canonical(other)


def test_a_canonical_fingerprint_does_not_depend_on_the_callers_stack() -> None:
    payload = "[" * 200 + " " + "]" * 200

    def deeper(levels: int) -> bytes:
        return deeper(levels - 1) if levels else canonical(payload)

    assert deeper(300) == canonical(payload) == canonical(payload.replace(" ", ""))


def test_bytes_that_are_not_text_have_a_canonical_fingerprint_too() -> None:
    assert canonical(b"\xff{}") == fingerprint("order.paid", b"\xff{}")


def test_canonical_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rfc8785", None)
    with pytest.raises(ConfigError, match=r"pip install 'oncebox\[canonical\]'"):
        canonical(b"{}")


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ConfigError, match="fingerprint='sorted': it is one of 'raw', 'canonical'"):
        fingerprint("a", b"", "sorted")  # type: ignore[arg-type]


def test_ids_are_stable_across_releases() -> None:
    # Outputs and business keys are compared with those of earlier versions.
    assert business("order", 7, "paid") == "order:7:paid~06873f202fa96444fc5fcab2dcd0604c99b08782"
    assert derived("a", "b") == "facdde7a-bf1e-8c5b-b012-73ab2e282f79"
    assert content("a", b"b") == f"sha256:{fingerprint('a', b'b').hex()}"
    assert position("payments", 3, 1042) == "payments:3:1042"


parts = st.lists(st.text(min_size=1), min_size=1)


@given(parts, parts)
def test_business_keys_are_equal_only_for_equal_parts(one: list[str], other: list[str]) -> None:
    assert (business(*one) == business(*other)) == (one == other)
    assert Message(id=business(*one)).id
    assert len(business(*one).encode()) <= ID_BYTES_MAX


def test_parts_do_not_run_into_each_other() -> None:
    assert business("a:b", "c") != business("a", "b:c")
    assert business("ab", "c") != business("a", "bc")


def test_integers_and_uuids_count_as_their_text() -> None:
    number = UUID(int=7)
    assert business("order", 7) == business("order", "7")
    assert business("order", number) == business("order", str(number))


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (1.5, "part 2 of an id is a float: use text, an integer or a UUID"),
        (None, "part 2 of an id is None"),
        (True, "part 2 of an id is a bool"),
        (b"7", "part 2 of an id is a bytes"),
        (Decimal("1.10"), "part 2 of an id is a Decimal"),
        ([], "part 2 of an id is a list"),
        ("", "part 2 of an id is empty"),
    ],
)
@pytest.mark.parametrize("make", [business, derived])
def test_a_part_without_one_exact_text_is_refused(make: Callable[..., str], part: Any, text: str) -> None:
    with pytest.raises(MessageError, match=text):
        make("order", part)


def test_a_business_key_needs_parts() -> None:
    with pytest.raises(MessageError, match="needs its parts"):
        business()


@pytest.mark.parametrize(
    ("topic", "partition", "offset"),
    [("", 0, 0), (None, 0, 0), ("t", None, 0), ("t", -1, 0), ("t", True, 0), ("t", 0, None), ("t", 0, -1),
     ("t", 0, 1.0), ("t", 0, ""), ("t", 0, "1:2")],
)  # fmt: skip
def test_a_position_is_whole_or_refused(topic: Any, partition: Any, offset: Any) -> None:
    with pytest.raises(MessageError):
        position(topic, partition, offset)


def test_positions_do_not_run_into_each_other() -> None:
    assert position("a:1", 2, 3) != position("a", 1, 23)
    assert position("stream", 0, "1712-0") == "stream:0:1712-0"


def test_derived_ids_differ_by_message_source_and_name_and_are_uuids() -> None:
    ids = [
        derived("7", "receipt"),
        derived("7", "invoice"),
        derived("8", "receipt"),
        derived(MessageKey("billing", "", "7"), "receipt"),
        derived(MessageKey("billing", "shop", "7"), "receipt"),
        derived(MessageKey("mailer", "shop", "7"), "receipt"),
        derived(MessageKey("billing", "shop", "7"), 0),
    ]
    assert len(set(ids)) == len(ids)
    assert derived("7", "receipt") == ids[0]
    assert all(UUID(made).version == 8 and UUID(made).variant == "specified in RFC 4122" for made in ids)


def test_a_derived_id_needs_its_message() -> None:
    for message in ("", MessageKey("billing", "shop", "")):
        with pytest.raises(MessageError, match="part 1 of an id is empty"):
            derived(message, "receipt")


@pytest.mark.parametrize("content_type", [None, "", "application/json", "text/plain"])
@pytest.mark.parametrize("kind", ["paid", "", None, b"paid", "a\0b", "t" * 300, "ünïcode"])
@pytest.mark.parametrize(
    "id_", ["evt-1", "", None, b"evt-1", 7, "a\0b", "a\nb", "\ud800", "i" * 61, "i" * 600]
)
def test_the_short_way_to_an_identity_finds_what_the_long_way_finds(
    id_: object, kind: object, content_type: str | None
) -> None:
    properties = {"message_id": id_, "type": kind, "content_type": content_type}
    delivery = Delivery(body=b"{}", properties=properties)
    identity = Identity(source="shop")
    long_way = Identity(source=lambda envelope: "shop")
    assert identity.resolve(delivery) == long_way.resolve(delivery)
