"""Who a delivery says it is: where the id, the source and the type are looked for, and in which order."""

import re
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox.brokers.contract import Delivery
from oncebox.errors import ConfigError, MessageError
from oncebox.identity import (
    Envelope,
    Identity,
    broker_id,
    business,
    by_business,
    by_content,
    by_position,
    cloudevents,
    content,
    field,
    header,
)
from oncebox.identity.resolvers import carried_source
from oncebox.message import ID_BYTES_MAX, TYPE_BYTES_MAX, Message, are_short
from tests.unit.deliveries import BINARY, STRUCTURED, delivery, key


def test_by_default_cloudevents_come_before_the_brokers_id_and_type() -> None:
    found = Identity().resolve(delivery(b"{}", BINARY, message_id="amqp-1", type="amqp.type"))
    assert key(found) == ("/shop", "ce-1", "order.paid")
    assert key(Identity().resolve(delivery(b"{}", message_id="amqp-1", type="amqp.type"))) == (
        "",
        "amqp-1",
        "amqp.type",
    )


def test_an_explicit_resolver_comes_before_cloudevents() -> None:
    found = Identity(id=field("data.id"), type=header("x-type")).resolve(
        delivery({"data": {"id": "o-1"}}, (*BINARY, ("X-Type", b"mine")), message_id="amqp-1")
    )
    assert key(found) == ("/shop", "o-1", "mine")


def test_an_explicit_resolver_that_finds_nothing_is_not_replaced_by_another_id() -> None:
    found = Identity(id=field("data.id")).resolve(delivery(b"{}", BINARY, message_id="amqp-1"))
    assert found.id is None
    assert found.why == "no id: the field 'data.id' gave none for this message"


def test_a_message_without_identity_is_a_result_and_not_an_error() -> None:
    found = Identity().resolve(delivery(b"\xff"))
    assert (found.id, found.payload, found.content_type) == (None, b"\xff", "application/json")
    assert "no CloudEvents id and source" in found.why
    assert "Identity(id=...)" in found.why


@pytest.mark.parametrize(
    ("body", "path", "found"),
    [
        ({"id": "a"}, "id", "a"),
        ({"data": {"id": 7}}, "data.id", "7"),
        ({"data": [{"id": "x"}, {"id": "y"}]}, "data.1.id", "y"),
        ({"id": 12345678901234567890123}, "id", "12345678901234567890123"),
        ({"id": 1.5}, "id", None),
        ({"id": True}, "id", None),
        ({"id": None}, "id", None),
        ({"id": ""}, "id", None),
        ({"id": {"a": 1}}, "id", None),
        ({"data": []}, "data.0.id", None),
        ({"data": "text"}, "data.id", None),
        ({}, "id", None),
        ([], "id", None),
        (b"not json", "id", None),
        (b"", "id", None),
        (b"[" * 100_000, "id", None),
    ],
)
def test_a_field_is_text_or_an_integer_in_the_json_body(body: Any, path: str, found: str | None) -> None:
    assert Identity(id=field(path)).resolve(delivery(body)).id == found


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b"])
def test_a_field_path_without_names_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"name the members from outside in, as in 'data\.id'"):
        field(path)


def test_a_header_is_found_in_any_case_first_of_repeats_and_only_as_text() -> None:
    identity = Identity(id=header("X-Id"))
    assert identity.resolve(delivery(b"", (("x-id", b"1"), ("X-ID", b"2")))).id == "1"
    assert identity.resolve(delivery(b"", (("x-id", b"\xff"),))).id is None
    assert identity.resolve(delivery(b"", (("x-id", b""),))).id is None
    with pytest.raises(ConfigError, match="name the header"):
        header("")


def test_a_function_gives_an_id_or_a_source_and_an_id() -> None:
    def tenant(envelope: Envelope) -> tuple[str, str]:
        body = envelope.json()
        return body["tenant"], body["id"]

    message = delivery({"tenant": "t1", "id": "7"}, BINARY)
    assert key(Identity(id=tenant, source="ignored").resolve(message)) == ("t1", "7", "order.paid")
    assert key(Identity(id=lambda envelope: "8").resolve(message)) == ("/shop", "8", "order.paid")


@pytest.mark.parametrize(
    ("resolver", "why"),
    [
        (lambda envelope: envelope.json()["s3cret"], r"no id: the function <lambda> failed \(KeyError\)"),
        (lambda envelope: None, "no id: the function <lambda> gave none for this message"),
        (lambda envelope: 7, "a message id is text, not int"),
        (lambda envelope: ("a", 7), "a message id is text, not int"),
        (lambda envelope: (7, "a"), "a message's source is text, not int"),
        (lambda envelope: ("a", "b", "c"), "a message id is text, not tuple"),
        (lambda envelope: "", "a message id can't be empty"),
        (lambda envelope: "a\0", "can't hold a NUL"),
        (lambda envelope: "x" * (ID_BYTES_MAX + 1), "513 bytes; the limit is 512"),
        (partial(lambda word, envelope: None, "s3cret"), "the function partial gave none"),
    ],
)
def test_what_a_function_gives_is_checked_and_its_failure_is_the_messages(resolver: Any, why: str) -> None:
    found = Identity(id=resolver).resolve(delivery({}))
    assert found.id is None
    assert re.search(why, found.why)
    assert "s3cret" not in found.why


def test_the_source_is_the_events_then_the_bindings_then_empty() -> None:
    assert Identity(source="bound").resolve(delivery(b"", BINARY)).source == "/shop"
    plain = delivery({"shop": "s1"}, (("tenant", b"t1"),), message_id="1")
    assert Identity(source="bound").resolve(plain).source == "bound"
    assert Identity(source=field("shop")).resolve(plain).source == "s1"
    assert Identity(source=header("tenant")).resolve(plain).source == "t1"
    assert Identity().resolve(plain).source == ""


def test_a_named_source_that_is_missing_is_no_identity_rather_than_another_namespace() -> None:
    found = Identity(source=header("tenant")).resolve(delivery(b"", message_id="1"))
    assert (found.id, found.why) == (None, "no source: the header 'tenant' gave none for this message")


def test_the_type_is_explicit_then_the_events_then_the_brokers_then_the_header() -> None:
    headers = (*BINARY, ("type", b"header.type"))
    everything = delivery({"kind": "field.type"}, headers, type="amqp.type", message_id="1")
    assert Identity(type="fixed").resolve(everything).type == "fixed"
    assert Identity(type=field("kind")).resolve(everything).type == "field.type"
    assert Identity(type=lambda envelope: "made").resolve(everything).type == "made"
    assert Identity().resolve(everything).type == "order.paid"
    assert (
        Identity().resolve(delivery(b"", headers[-1:], type=b"amqp.type", message_id="1")).type == "amqp.type"
    )
    assert Identity().resolve(delivery(b"", headers[-1:], message_id="1")).type == "header.type"
    assert Identity().resolve(delivery(b"", message_id="1")).type == ""
    assert Identity(type=field("kind")).resolve(delivery(b"", BINARY)).type == ""


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("x" * (TYPE_BYTES_MAX + 1), "a message's type is 256 bytes; the limit is 255"),
        ("a\0", "NUL"),
        (7, "gave a int, not text"),
        (("a", "b"), "gave a tuple, not text"),
    ],
)
def test_a_type_that_can_not_be_one_leaves_the_message_unidentified(kind: Any, why: str) -> None:
    found = Identity(type=lambda envelope: kind).resolve(delivery(b"", message_id="1"))
    assert (found.id, found.type) == (None, "")
    assert why in found.why


def test_business_content_and_position_are_only_used_when_named() -> None:
    sent = delivery({"order": 7}, type="paid")
    sent.provenance = {"topic": "payments", "partition": 3, "offset": 1042}
    assert Identity().resolve(sent).id is None
    assert Identity(id=by_business("order", field("order"), header("x"))).resolve(sent).id is None
    assert Identity(id=by_business("order", field("order"), "paid")).resolve(sent).id == business(
        "order", 7, "paid"
    )
    assert Identity(id=by_content).resolve(sent).id == content("paid", sent.body)
    assert Identity(id=by_position).resolve(sent).id == "payments:3:1042"


@pytest.mark.parametrize(
    ("provenance", "found"),
    [
        ({"stream": "payments", "id": "1712-0"}, "payments:0:1712-0"),
        ({"offset": 1042}, None),
        ({"topic": "payments", "offset": 1042}, None),
        ({"queue": "payments"}, None),
    ],
)
def test_a_position_is_never_the_offset_alone(provenance: dict[str, Any], found: str | None) -> None:
    assert Identity(id=by_position).resolve(Delivery(body=b"", provenance=provenance)).id == found


def test_resolvers_can_be_combined_by_a_function() -> None:
    either = Identity(
        id=lambda envelope: header("x-id")(envelope) or cloudevents(envelope) or broker_id(envelope)
    )
    assert key(either.resolve(delivery(b"", BINARY))) == ("/shop", "ce-1", "order.paid")
    assert either.resolve(delivery(b"", (("x-id", b"1"),))).id == "1"
    assert either.resolve(delivery(b"", message_id="amqp-1")).id == "amqp-1"


def test_how_often_and_under_which_tag_it_was_delivered_does_not_count() -> None:
    first = Delivery(body=b"{}", headers=BINARY, deliveries=1, tag=1)
    second = Delivery(body=b"{}", headers=BINARY, deliveries=2, tag=2, redelivered=True)
    for identity in (Identity(), Identity(id=by_content), Identity(id=broker_id)):
        assert identity.resolve(first) == identity.resolve(second)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"id": "evt-42"}, r"Identity\(id='evt-42'\): one id for all messages .*identity\.field"),
        ({"source": 7}, r"Identity\(source=7\): it is text, a field, a header or a function"),
        ({"type": 7}, r"Identity\(type=7\): it is text, a field, a header or a function"),
    ],
)
def test_words_that_make_no_identity_are_refused_when_they_are_said(words: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Identity(**words)


def test_constant_parts_are_checked_when_they_are_said() -> None:
    with pytest.raises(ConfigError, match="one id for all messages"):
        by_business("order", "paid")
    with pytest.raises(MessageError, match="part 1 of an id is empty"):
        by_business("", field("id"))
    with pytest.raises(MessageError, match="NUL"):
        Identity(source="a\0")


def test_a_content_type_that_no_column_takes_does_not_cost_the_message() -> None:
    for value in ("a\0b", "x" * 300):
        found = Identity().resolve(delivery(b"", message_id="1", content_type=value))
        assert (found.id, found.content_type) == ("1", "application/octet-stream")


anything = st.none() | st.integers() | st.binary() | st.text()


@given(
    st.binary() | st.just(b'{"id":"\\u0000","source":"s","data_base64":"="}'),
    st.lists(
        st.tuples(
            st.sampled_from(["ce-id", "ce_source", "content-type", "type"]) | st.text(),
            st.binary() | st.just(STRUCTURED[0][1]),
        )
    ).map(tuple),
    st.dictionaries(st.sampled_from(["message_id", "type", "content_type"]), anything),
)
def test_whatever_arrives_is_resolved_to_a_message_or_to_a_reason(
    body: bytes, headers: Any, properties: Any
) -> None:
    for identity in (Identity(), Identity(id=by_content), Identity(id=field("id"), source=header("type"))):
        found = identity.resolve(Delivery(body=body, headers=headers, properties=properties))
        assert (found.id is None) == bool(found.why)
        Message(id=found.id or "none", source=found.source, type=found.type, content_type=found.content_type)


_TEXTS = st.sampled_from(
    [None, "", "a-1", "é" * 70, "x" * 300, "x" * 600, "a\0b", "a\ud800", b"a-1", b"\xff", 7]
)
_NAMES = st.sampled_from(
    [
        "ce-id",
        "CE_ID",
        "ce_source",
        "ce-source",
        "ce_type",
        "ce-type",
        "type",
        "content-type",
        "Content-Type",
        "x",
    ]
)
_VALUES = st.sampled_from(
    [b"", b"a-1", b"%41", b"\xff", b"a\0b", b"x" * 300, b"x" * 600, b"application/json"]
)
_KINDS = st.sampled_from([None, "", "application/json", "text/plain", "application/cloudevents+json", b"a/b"])


@given(
    st.fixed_dictionaries(
        {}, optional={"message_id": _TEXTS, "type": _TEXTS, "source": _TEXTS, "content_type": _KINDS}
    ),
    st.lists(st.tuples(_NAMES, _VALUES), max_size=5).map(tuple),
    st.sampled_from(["", "shop", carried_source]),
)
def test_the_short_way_finds_what_the_long_way_finds(
    properties: dict[str, Any], headers: Any, source: Any
) -> None:
    identity = Identity(source=source)
    delivered = delivery(b'{"a": 1}', headers, **properties)
    long_way = Identity(id=lambda envelope: cloudevents(envelope) or broker_id(envelope), source=source)
    resolved = long_way.resolve(delivered)
    said = identity.said(delivered)
    if said is not None and are_short(*said):
        assert identity.resolve(delivered) == resolved
    if said is None:
        return
    try:  # unchecked: who takes it at its word has the message say whether it can be one
        message = Message(id=said[0], source=said[1], type=said[2], payload=delivered.body)
    except MessageError:
        return
    told = (message.id, message.source, message.type, message.payload, message.content_type)
    assert told == (resolved.id, resolved.source, resolved.type, resolved.payload, resolved.content_type)


def test_the_common_messages_go_the_short_way() -> None:
    identity = Identity()
    assert identity.said(delivery(b"{}", message_id="a-1", type="paid")) is not None
    assert identity.said(delivery(b"{}", BINARY, content_type="application/json")) is not None
    assert identity.said(delivery(b"{}", (*BINARY, ("Content-Type", b"application/json")))) is not None
    carried = Identity(source=carried_source)
    assert carried.said(delivery(b"{}", message_id="a-1", type="paid", source="shop")) is not None
