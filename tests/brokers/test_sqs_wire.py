"""What a message looks like in SQS, and what is made of what others put there. No server is needed."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oncebox.brokers.contract import Delivery
from oncebox.brokers.sqs import by_message_id, wire
from oncebox.errors import MessageError, TooLarge
from oncebox.identity import Identity
from oncebox.message import Message

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60)
MESSAGES = st.builds(
    Message,
    id=TEXT,
    type=st.just("") | TEXT,
    source=st.just("") | TEXT,
    key=st.none() | TEXT,
    payload=st.binary(max_size=200) | TEXT.map(str.encode),
    content_type=st.sampled_from(["application/json", "text/plain"]),
    headers=st.lists(st.tuples(TEXT | st.sampled_from(["a", "type", "content-type"]), st.binary(max_size=20)))
    .map(lambda pairs: tuple(pairs[:15])),
)  # fmt: skip
ALLOWED = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")


def arrived(parameters: dict[str, Any], queue: str, **system: str) -> Delivery:
    """The message as SQS would hand it out."""
    for name in ("MessageDeduplicationId", "MessageGroupId"):
        if name in parameters:
            system[name] = parameters[name]
    raw = {
        "MessageId": "made-by-sqs",
        "Body": parameters["MessageBody"],
        "Attributes": {"ApproximateReceiveCount": "1", **system},
        "MessageAttributes": parameters.get("MessageAttributes", {}),
    }
    return wire.delivery(raw, queue, unwrap_sns=True)


@settings(max_examples=60, deadline=None)
@given(message=MESSAGES, fifo=st.booleans())
def test_every_message_comes_back_as_it_was_and_keeps_to_the_rules(message: Message, fifo: bool) -> None:
    parameters, size = wire.entry(message, fifo=fifo)
    assert ALLOWED.fullmatch(parameters["MessageBody"]), "SQS takes no other characters, and nothing empty"
    attributes = parameters["MessageAttributes"]
    assert len(attributes) <= 10
    for name, attribute in attributes.items():
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,256}", name)
        assert attribute.get("StringValue") or attribute.get("BinaryValue")
        assert attribute["DataType"] == "Binary" or ALLOWED.fullmatch(attribute["StringValue"])
    if fifo:
        for name in ("MessageDeduplicationId", "MessageGroupId"):
            assert re.fullmatch(r"[!-~]{1,128}", parameters[name])
    assert size >= len(parameters["MessageBody"].encode())

    # Where a message names no type, its header of that name is taken for it, as everywhere.
    assume(message.type or not message.header("type"))
    delivery = arrived(parameters, "q.fifo" if fifo else "q")
    who = Identity().resolve(delivery)
    assert (who.id, who.source, who.type) == (message.id, message.source, message.type)
    assert (who.payload, who.content_type) == (message.payload, message.content_type)
    assert delivery.key == message.key
    own = {"message-id", "type", "content-type", "ce_id", "ce_source", "ce_type", "ce_specversion"}
    theirs = [pair for pair in message.headers if pair[0].lower() not in own]
    back = [pair for pair in delivery.headers if pair[0].lower() not in own]
    assert sorted(back) == sorted(theirs)
    names = [name for name, _ in theirs]
    if len(set(names)) < len(names):
        assert back == theirs, "repeats keep their order"


def test_plain_message_is_readable_by_anyone() -> None:
    message = Message(id="evt-1", type="paid", payload={"n": 1}, headers={"trace": "t", "ce-x": "y"})
    parameters, _ = wire.entry(message, fifo=False)
    assert parameters["MessageBody"] == '{"n":1}'
    assert {name: each["StringValue"] for name, each in parameters["MessageAttributes"].items()} == {
        "message-id": "evt-1",
        "type": "paid",
        "content-type": "application/json",
        "trace": "t",
        "ce-x": "y",
    }


def test_fifo_names_the_id_and_the_key() -> None:
    parameters, _ = wire.entry(Message(id="evt-1", key="account-7"), fifo=True)
    assert (parameters["MessageDeduplicationId"], parameters["MessageGroupId"]) == ("evt-1", "account-7")


def test_fifo_does_not_take_one_sources_message_for_anothers() -> None:
    ids = [
        wire.entry(Message(id=id_, source=source), fifo=True)[0]["MessageDeduplicationId"]
        for source, id_ in [("", "1"), ("a", "1"), ("b", "1"), ("a1", ":1"), ("a", "11")]
    ]
    assert len(set(ids)) == 5


def test_messages_without_a_key_wait_for_nobody() -> None:
    groups = {wire.entry(Message(id=id_), fifo=True)[0]["MessageGroupId"] for id_ in "abc"}
    assert len(groups) == 3


def test_size_counts_attributes_and_encoding_and_the_limit_is_named() -> None:
    fits = Message(id="a", payload=b"x" * (wire.BYTES_MAX - 200))
    assert wire.entry(fits, fifo=False)[1] <= wire.BYTES_MAX
    with pytest.raises(TooLarge, match=r"takes 1,048,576 .*262,144 before"):
        wire.entry(Message(id="a", payload=b"x" * wire.BYTES_MAX), fifo=False)
    with pytest.raises(TooLarge):
        wire.entry(Message(id="a", payload=b"\xff" * 800_000), fifo=False)
    with pytest.raises(TooLarge, match="takes 1,024"):
        wire.entry(Message(id="a", headers={"h": "x" * 1_100}), fifo=False, bytes_max=1_024)


def test_header_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(MessageError, match="surrogate"):
        wire.entry(Message(id="a", headers=(("\ud800", b""),)), fifo=False)


def test_deduplication_id_is_the_id_unless_it_was_made_from_the_body() -> None:
    digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"  # of "hello"
    given_by_producer = arrived({"MessageBody": "hello"}, "q.fifo", MessageDeduplicationId="evt-1")
    made_up = arrived({"MessageBody": "hello"}, "q.fifo", MessageDeduplicationId=digest)
    assert given_by_producer.properties == {"message_id": "evt-1"}
    assert made_up.properties == {}


def test_group_is_a_key_in_a_fifo_queue_only() -> None:
    assert arrived({"MessageBody": "x"}, "q.fifo", MessageGroupId="k").key == "k"
    assert arrived({"MessageBody": "x"}, "q", MessageGroupId="tenant").key is None


def test_ids_that_sqs_makes_up_are_none_unless_named() -> None:
    delivery = arrived({"MessageBody": "hello"}, "q")
    assert Identity().resolve(delivery).id is None
    assert Identity(id=by_message_id).resolve(delivery).id == "made-by-sqs"


def envelope(**changes: Any) -> dict[str, Any]:
    return {
        "Type": "Notification",
        "MessageId": "made-by-sns",
        "TopicArn": "arn:aws:sns:eu-west-1:1:orders",
        "Subject": "news",
        "Message": '{"order": 7}',
        "Timestamp": "2026-01-01T00:00:00.000Z",
        "MessageAttributes": {
            "message-id": {"Type": "String", "Value": "evt-7"},
            "type": {"Type": "String", "Value": "order.created"},
            "blob": {"Type": "Binary", "Value": "/wD+"},
            "broken": {"Type": "Binary", "Value": "?"},
        },
        **changes,
    }


def through_sns(**changes: Any) -> Delivery:
    return arrived({"MessageBody": msgspec.json.encode(envelope(**changes)).decode()}, "q")


def test_sns_envelope_is_taken_off() -> None:
    delivery = through_sns()
    who = Identity().resolve(delivery)
    assert (who.id, who.type, delivery.body) == ("evt-7", "order.created", b'{"order": 7}')
    headers = dict(delivery.headers)
    assert (headers["blob"], headers["broken"]) == (b"\xff\x00\xfe", b"?")
    assert delivery.provenance["sns_topic"] == "arn:aws:sns:eu-west-1:1:orders"
    assert delivery.provenance["sns_subject"] == "news"
    assert Identity(id=by_message_id).resolve(delivery).id == "made-by-sns"


@pytest.mark.parametrize(
    "changes",
    [{"Type": "Order"}, {"Message": {"order": 7}}, {"MessageAttributes": [1]}, {"MessageId": None}],
)
def test_what_only_looks_like_an_envelope_stays_as_it_is(changes: dict[str, Any]) -> None:
    delivery = through_sns(**changes)
    assert msgspec.json.decode(delivery.body) == envelope(**changes)
    assert "sns_topic" not in delivery.provenance


def test_envelope_is_kept_where_it_is_wanted() -> None:
    raw = {"Body": msgspec.json.encode(envelope()).decode(), "MessageId": "m"}
    assert wire.delivery(raw, "q", unwrap_sns=False).body == msgspec.json.encode(envelope())


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"Body": None, "Attributes": None, "MessageAttributes": None},
        {"Body": "\ud800", "Attributes": {"ApproximateReceiveCount": "many"}},
        {"Body": "not base64!", "MessageAttributes": {"oncebox-encoding": {"StringValue": "base64"}}},
        {"Body": "x", "MessageAttributes": {"oncebox-headers": {"StringValue": "[["}}},
        {"Body": "x", "MessageAttributes": {"oncebox-key": {"BinaryValue": b"\xff"}, "n": {"DataType": "?"}}},
        {"Body": '{"TopicArn":' + "[" * 5_000},
    ],
)
def test_nothing_that_arrives_is_an_error(raw: dict[str, Any]) -> None:
    delivery = wire.delivery(raw, "q", unwrap_sns=True)
    assert delivery.deliveries == 1
    assert Identity().resolve(delivery).id is None


def test_id_that_is_not_text_is_no_id() -> None:
    delivery = wire.delivery(
        {"Body": "x", "MessageAttributes": {"message-id": {"BinaryValue": b"\xff"}}}, "q", unwrap_sns=True
    )
    assert Identity().resolve(delivery).id is None
