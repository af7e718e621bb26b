"""CloudEvents as brokers carry them: one key and one payload, whichever mode and protocol brought them."""

from typing import Any

import pytest

from oncebox.brokers.contract import Delivery
from oncebox.identity import Identity, field, fingerprint
from tests.unit.deliveries import BINARY, STRUCTURED, delivery, event, key


@pytest.mark.parametrize("prefix", ["ce-", "Ce-", "ce_", "cloudEvents:", "cloudEvents_"])
def test_binary_cloudevents_are_read_under_every_protocols_names(prefix: str) -> None:
    headers = tuple((f"{prefix}{name[3:]}", value) for name, value in BINARY)
    found = Identity().resolve(delivery(b"body", headers, content_type="text/plain"))
    assert key(found) == ("/shop", "ce-1", "order.paid")
    assert (found.payload, found.content_type) == (b"body", "text/plain")


def test_http_and_nats_percent_encode_and_the_others_do_not() -> None:
    encoded = (("ce-id", b"50%25%20%E2%82%AC"), ("ce-source", b"/shop"))
    assert Identity().resolve(delivery(b"", encoded)).id == "50% €"
    plain = (("ce_id", "50%25 €".encode()), ("ce_source", b"/shop"))
    assert Identity().resolve(delivery(b"", plain)).id == "50%25 €"


@pytest.mark.parametrize(
    "headers", [BINARY[:1], BINARY[1:], (("ce-id", b"\xff"), BINARY[1]), (("ce-id", b""), BINARY[1])]
)
def test_an_event_without_id_or_source_is_no_event(headers: Any) -> None:
    assert Identity().resolve(delivery(b"", headers, message_id="amqp-1")).id == "amqp-1"


def test_a_structured_event_gives_its_data_as_the_payload_byte_for_byte() -> None:
    body = b'{"id":"ce-1","source":"/shop","type":"order.paid","data": {"b": 1.0,  "a":"\\u00e9"} }'
    found = Identity().resolve(Delivery(body=body, headers=STRUCTURED))
    assert key(found) == ("/shop", "ce-1", "order.paid")
    assert found.payload == b'{"b": 1.0,  "a":"\\u00e9"}'
    assert found.content_type == "application/json"
    assert key(Identity(id=field("data.a")).resolve(Delivery(body=body, headers=STRUCTURED)))[1] == "é"


def test_both_modes_of_one_event_have_one_key_and_one_fingerprint() -> None:
    structured = Identity().resolve(event(data={"id": 7}))
    binary = Identity().resolve(delivery({"id": 7}, BINARY))
    assert key(structured) == key(binary)
    assert fingerprint(structured.type, structured.payload) == fingerprint(binary.type, binary.payload)


@pytest.mark.parametrize(
    ("members", "payload", "content_type"),
    [
        ({}, b"", "application/json"),
        ({"data": None}, b"null", "application/json"),
        ({"data": "text"}, b'"text"', "application/json"),
        ({"data": "<é/>", "datacontenttype": "text/xml"}, "<é/>".encode(), "text/xml"),
        ({"data": {"a": 1}, "datacontenttype": "text/xml"}, b'{"a": 1}', "text/xml"),
        (
            {"data": "text", "datacontenttype": "application/vnd.x+json; a=b"},
            b'"text"',
            "application/vnd.x+json; a=b",
        ),
        ({"data_base64": "/wA=", "datacontenttype": "image/png"}, b"\xff\0", "image/png"),
    ],
)
def test_structured_data_is_what_binary_mode_would_have_carried(
    members: dict[str, Any], payload: bytes, content_type: str
) -> None:
    found = Identity().resolve(event(**members))
    assert (found.id, found.payload, found.content_type) == ("ce-1", payload, content_type)


@pytest.mark.parametrize(
    "broken",
    [
        event(id=7),
        event(source=None),
        event(source=""),
        event(data_base64="?"),
        delivery(b"{", STRUCTURED),
        delivery(b"[" * 100_000, STRUCTURED),
        delivery(b"\xff", STRUCTURED),
    ],
)
def test_a_broken_structured_event_is_kept_whole_under_the_brokers_id(broken: Delivery) -> None:
    assert Identity().resolve(broken).id is None
    broken.properties = {"message_id": "amqp-1"}
    found = Identity().resolve(broken)
    assert (found.id, found.payload) == ("amqp-1", broken.body)
