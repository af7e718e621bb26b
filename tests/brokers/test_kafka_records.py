"""What a Kafka record says, and how a message is written as one; settings that are refused. No broker."""

import logging
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from oncebox.brokers.contract import Burying, Delaying, Delivery, Sink, Source
from oncebox.brokers.kafka import Kafka
from oncebox.brokers.kafka.logs import Log, translated
from oncebox.brokers.kafka.records import delivery, destination, key_text, outgoing
from oncebox.errors import BrokerUnavailable, ConfigError, TooLarge
from oncebox.identity import Identity, by_position
from oncebox.message import Message


class Record:
    """What confluent-kafka gives, without a broker."""

    def __init__(self, **words: Any) -> None:
        self.words = {
            "topic": "orders", "partition": 3, "offset": 7, "key": None, "value": b"{}", "headers": None,
            "timestamp": (1, 1_700_000_000_000), **words,
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return lambda: self.words[name]


def read(**words: Any) -> Delivery:
    record: Any = Record(**words)
    return delivery(record)


def test_provenance_says_where_it_lay() -> None:
    assert read(key=b"k").provenance == {
        "topic": "orders", "partition": 3, "offset": 7, "key": "k", "timestamp": 1_700_000_000_000
    }  # fmt: skip
    assert "timestamp" not in read(timestamp=(0, -1)).provenance


def test_tombstone_is_empty_and_says_so() -> None:
    gone = read(value=None)
    assert (gone.body, gone.provenance["tombstone"]) == (b"", True)
    assert "tombstone" not in read(value=b"").provenance


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("message-id", b"m")], "m"),
        ([("Message-ID", b"m"), ("id", b"other")], "m"),
        ([("id", b"other"), ("message_id", b"m")], "m"),
        ([("id", b"m")], "m"),
        ([("ce_id", b"m")], "m"),
        ([("id", None), ("ce_id", b"m")], "m"),
        ([("x", b"m")], None),
        (None, None),
    ],
)
def test_id_is_found_in_the_headers_producers_use(headers: Any, expected: str | None) -> None:
    assert Identity().resolve(read(headers=headers)).id == expected


def test_id_that_is_not_text_is_no_identity() -> None:
    assert Identity().resolve(read(headers=[("id", b"\xff")])).id is None


def test_position_is_an_identity_only_when_named() -> None:
    assert Identity().resolve(read()).id is None
    assert Identity(id=by_position).resolve(read()).id == "orders:3:7"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (None, None),
        (b"", ""),
        (b"account-7", "account-7"),
        ("é".encode(), "é"),
        ((7).to_bytes(8), "0x0000000000000007"),
        (b"\xff\xfe", "0xfffe"),
    ],
)
def test_key_is_text_whatever_its_serializer(key: bytes | None, text: str | None) -> None:
    assert key_text(key) == text
    Message(id="a", key=key_text(key))


def test_long_keys_stay_apart_and_fit() -> None:
    one, other = key_text(b"a" * 600), key_text(b"a" * 601)
    assert one != other
    for key in (one, other, key_text(b"\0" * 300)):
        Message(id="a", key=key)


def test_message_is_written_as_a_cloudevent_where_it_names_a_source() -> None:
    message = Message(id="1", type="paid", source="shop", headers=(("x", b"\xff"), ("ce_id", b"1")))
    assert outgoing(message) == [
        ("ce_specversion", "1.0"), ("ce_id", "1"), ("ce_source", "shop"), ("ce_type", "paid"),
        ("content-type", "application/json"), ("x", b"\xff"),
    ]  # fmt: skip
    assert outgoing(Message(id="1")) == [("message-id", "1"), ("content-type", "application/json")]


def test_publication_names_its_topic_and_a_received_message_does_not() -> None:
    assert destination(Message(id="1"), "events") == "events"
    assert destination(Message(id="1", provenance={"topic": "other"}), "events") == "other"
    assert destination(Message(id="1", provenance={"topic": "orders", "offset": 7}), "events") == "events"


@pytest.mark.parametrize(
    "word",
    ["enable.auto.commit", "enable_auto_commit", "enable.auto.offset.store", "enable_auto_offset_store"],
)
def test_automatic_offsets_are_refused_wherever_they_are_said(word: str) -> None:
    for wrong in (
        lambda: Kafka("localhost:1", **{word: True}),
        lambda: Kafka("localhost:1").topics("orders", group="g", config={word: False}),
    ):
        with pytest.raises(ConfigError, match=r"enable\.auto\.(commit|offset\.store) can't be set: oncebox"):
            wrong()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"topics": ()}, "at least one topic"),
        ({"topics": ("",)}, "at least one topic"),
        ({"group": ""}, "share a group"),
        ({"window": 0}, "window=0"),
        ({"prefetch": True}, "prefetch=True"),
        ({"drain": -1}, "drain=-1"),
        ({"drain": 10, "config": {"max.poll.interval.ms": 10_000}}, "not less than max.poll.interval.ms"),
        ({"dead_letter": "orders"}, "another topic's name"),
        ({"config": {"group.id": "x"}}, "named at the source"),
    ],
)
def test_words_that_can_not_be_are_refused_with_the_right_ones(words: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"topics": ("orders",), "group": "g", **words}
    topics = given.pop("topics")
    with pytest.raises(ConfigError, match=said):
        Kafka("localhost:1").topics(*topics, **given)


def test_sink_stays_idempotent_and_names_a_topic() -> None:
    for wrong in (
        lambda: Kafka("localhost:1", enable_idempotence=False).topic("events"),
        lambda: Kafka("localhost:1").topic(""),
        lambda: Kafka(" "),
    ):
        with pytest.raises(ConfigError):
            wrong()


def test_making_them_opens_nothing_and_they_fit_the_contract() -> None:
    kafka = Kafka("nowhere.invalid:1", sasl_password="s3cret")
    source: Source = kafka.topics("orders", "refunds", group="billing", retention=60)
    sink: Sink = kafka.topic("events")
    assert (source.name, sink.name) == ("orders+refunds@billing", "events")
    assert (source.pins_keys, source.counts_deliveries, source.redelivery_horizon_seconds) == (
        True,
        False,
        60,
    )
    assert "s3cret" not in repr(kafka)
    delaying: Delaying = kafka.topics("orders", group="billing")
    burying: Burying = kafka.topics("orders", group="billing", dead_letter="orders-dead")
    assert (delaying.delays, callable(burying.bury)) == (False, True)


def test_chatter_is_quiet_and_the_rest_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "oncebox.kafka")
    for facility in ("FAIL", "GETSUBSCRIPTIONS"):
        Log().log(logging.ERROR, "%s [%s] %s", facility, "rdkafka#1", "refused")
    assert [record.getMessage() for record in caplog.records] == ["GETSUBSCRIPTIONS [rdkafka#1] refused"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._ALL_BROKERS_DOWN, BrokerUnavailable),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, BrokerUnavailable),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, BrokerUnavailable),
        (KafkaError.MSG_SIZE_TOO_LARGE, TooLarge),
        (KafkaError._INVALID_ARG, ConfigError),
    ],
)
def test_errors_are_translated(code: int, kind: type[Exception]) -> None:
    error = translated(KafkaException(KafkaError(code)), "Kafka at there")
    assert isinstance(error, kind)
    assert "Kafka at there" in str(error)
