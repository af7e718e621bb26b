"""SQS, as moto plays it: the suite on a standard and on a FIFO queue, and what only SQS does."""

import asyncio
import json
import logging
from typing import Any

import pytest

from oncebox.brokers.contract import Delivery, Sink, Source
from oncebox.brokers.sqs import Sqs, by_message_id
from oncebox.errors import BrokerUnavailable, MessageError, TooLarge
from oncebox.identity import Identity
from oncebox.message import Message
from tests.brokers.sqs_bench import FifoBench, SqsBench, client, moto, new_name, session
from tests.brokers.suite import Bench, BrokerSuite, ids, received
from tests.servers.moto import REGION


class TestStandardQueue(BrokerSuite):
    def bench(self) -> Bench:
        return SqsBench()


class TestFifoQueue(BrokerSuite):
    # The same code as above, and slow in moto.
    test_concurrent_consumers_never_share_a_live_delivery = None  # type: ignore[assignment]
    test_cancelled_receive_loses_nothing_and_holds_nothing_back = None  # type: ignore[assignment]

    def bench(self) -> Bench:
        return FifoBench()


def sqs() -> Sqs:
    return Sqs(region=REGION, endpoint_url=moto().url, session=session())


def keyed(*names: str) -> list[Message]:
    """`a1` is a message of key `a`."""
    return [Message(id=name, key=name[0]) for name in names]


async def all_of(source: Source, count: int) -> list[Delivery]:
    deliveries: list[Delivery] = []
    while len(deliveries) < count:
        deliveries += await received(source)
    return deliveries


async def test_source_and_sink_fit_the_contract() -> None:
    source: Source = sqs().queue("payments.fifo", type="paid")
    sink: Sink = sqs().sink("payments")
    assert (source.name, source.pins_keys, source.in_process, sink.name) == (
        "payments.fifo", True, False, "payments",
    )  # fmt: skip
    await source.close()
    await sink.close()


async def test_horizon_is_the_retention_and_a_queue_may_be_named_by_its_url() -> None:
    async with client() as bare:
        attributes = {"MessageRetentionPeriod": "3600"}
        reply = await bare.create_queue(QueueName=new_name(), Attributes=attributes)
    source = sqs().queue(reply["QueueUrl"])
    await source.open()
    assert source.redelivery_horizon_seconds == 3600
    assert source.name == reply["QueueUrl"].rpartition("/")[2]
    await source.close()


async def test_no_more_than_ten_come_at_once_and_none_is_left_out() -> None:
    async with SqsBench() as bench:
        source = await bench.source()
        await bench.publish(*(Message(id=str(number)) for number in range(12)))
        assert len(await received(source, limit=100)) == 10
        assert len(await received(source, limit=100)) == 2


async def test_key_in_flight_or_nacked_keeps_its_others_back() -> None:
    async with FifoBench() as bench:
        first, second = await bench.source(), await bench.source()
        await bench.publish(*keyed("a1", "a2", "b1"))
        [head] = await received(first, limit=1)
        assert ids([head]) == ["a1"]
        assert ids(await received(second)) == ["b1"]
        await first.nack(head, 10)
        await bench.publish(*keyed("c1"))
        assert ids(await received(second)) == ["c1"]
        await bench.pass_seconds(11)
        assert ids(await all_of(second, 2)) == ["a1", "a2"]


async def test_released_batch_comes_again_in_order() -> None:
    async with FifoBench() as bench:
        first, second = await bench.source(), await bench.source()
        await bench.publish(*keyed("a1", "a2", "a3"))
        held = await all_of(first, 3)
        assert ids(held) == ["a1", "a2", "a3"]
        await first.release(held)
        assert ids(await all_of(second, 3)) == ["a1", "a2", "a3"]


async def test_fifo_queue_drops_a_second_sending_and_keeps_another_sources_message() -> None:
    async with FifoBench() as bench:
        source = await bench.source()
        once, other = Message(id="1", key="k"), Message(id="1", key="k", source="elsewhere")
        await bench.publish(once, once, other)
        await bench.publish(once)
        deliveries = await all_of(source, 2)
        assert [source.identity.resolve(each).source for each in deliveries] == ["", "elsewhere"]
        await source.ack(deliveries)
        await bench.publish(Message(id="2", key="k"))
        assert ids(await received(source)) == ["2"]


async def test_message_that_is_not_taken_holds_its_key_back_and_nobody_else() -> None:
    async with FifoBench() as bench:
        source = await bench.source()
        messages = keyed("a1", "b1", "a2", "a3", "b2")
        moto().fail(sends=1)
        answers = await bench.sink.publish(messages)
        assert [answer is None for answer in answers] == [False, True, False, False, True]
        assert all(isinstance(answer, BrokerUnavailable) for answer in answers if answer)
        left = [message for message, answer in zip(messages, answers, strict=True) if answer]
        assert await bench.sink.publish(left) == [None] * 3
        assert ids(await all_of(source, 5)) == ["b1", "b2", "a1", "a2", "a3"]


async def test_failed_entries_of_a_batch_are_told_one_by_one() -> None:
    async with SqsBench() as bench:
        source = await bench.source()
        messages = [Message(id=str(number)) for number in range(25)]
        messages[7] = Message(id="large", payload=b"x" * (2 << 20))
        moto().fail(sends=2)
        answers = await bench.sink.publish(messages)
        assert isinstance(answers[7], TooLarge)
        assert [type(answer) for answer in answers].count(BrokerUnavailable) == 2
        sent = {message.id for message, answer in zip(messages, answers, strict=True) if answer is None}
        assert len(sent) == 22
        assert set(ids(await all_of(source, 22))) == sent


async def test_publication_with_a_topic_of_its_own_is_refused() -> None:
    async with SqsBench() as bench:
        elsewhere = Message(id="b", provenance={"topic": "audit"})
        answers = await bench.sink.publish([Message(id="a"), elsewhere])
        assert answers[0] is None
        assert isinstance(answers[1], MessageError)
        assert "topic='audit', but this sink sends to queue" in str(answers[1])


async def test_message_that_sqs_refuses_does_not_take_its_neighbours_with_it() -> None:
    async with SqsBench() as bench:
        # The queue's limit is lowered after the sink has read it.
        async with client() as bare:
            url = (await bare.get_queue_url(QueueName=bench.name))["QueueUrl"]
            await bare.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "1024"})
        small, large = Message(id="a"), Message(id="b", payload=b"x" * 2_000)
        answers = await bench.sink.publish([small, large, Message(id="c")])
        assert [answer is None for answer in answers] == [True, False, True]
        assert "InvalidParameterValue" in str(answers[1])
        assert "xxx" not in str(answers[1])
        await bench.sink.close()
        await bench.sink.open()
        [answer] = await bench.sink.publish([large])
        assert isinstance(answer, TooLarge)
        assert "the queue takes 1,024" in str(answer)


async def test_batch_is_divided_by_bytes() -> None:
    async with SqsBench() as bench:
        source = await bench.source()
        body = b"x" * 600_000
        assert await bench.sink.publish([Message(id=name, payload=body) for name in "abc"]) == [None] * 3
        assert sorted(ids(await all_of(source, 3))) == ["a", "b", "c"]


async def test_delete_that_fails_for_sqs_own_reasons_is_tried_again() -> None:
    async with SqsBench() as bench:
        source = await bench.source()
        await bench.publish(*(Message(id=str(number)) for number in range(5)))
        held = await all_of(source, 5)
        moto().fail(deletes=7)  # five, then two of them once more
        await source.ack(held)
        await bench.pass_seconds(31)
        await bench.publish(Message(id="last"))
        assert ids(await received(source)) == ["last"]


async def test_delete_that_keeps_failing_is_reported_and_the_message_comes_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with SqsBench() as bench:
        source = await bench.source()
        await bench.publish(Message(id="a"), Message(id="b"))
        held = await all_of(source, 2)
        moto().fail(deletes=5)  # both, both, and the first of them for the last time
        await source.ack(held)
        assert "0 of 2 were refused, 1 failed; those messages come again" in caplog.text
        await bench.pass_seconds(31)
        assert ids(await received(source)) == ids(held[:1])


async def test_receipt_that_is_worth_nothing_does_not_keep_the_others_from_being_acked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "oncebox")
    async with SqsBench() as bench:
        source = await bench.source()
        await bench.publish(Message(id="purged"))
        held = await received(source)
        async with client() as bare:
            await bare.purge_queue(QueueUrl=(await bare.get_queue_url(QueueName=bench.name))["QueueUrl"])
        await bench.publish(Message(id="b"))
        held += await received(source)
        await source.extend(held, 60)
        await source.ack(held)
        assert "1 of 2 were refused" in caplog.text
        await bench.pass_seconds(61)
        await bench.publish(Message(id="c"))
        assert ids(await received(source)) == ["c"]


async def test_delay_and_extension_end_within_the_twelve_hours_of_sqs() -> None:
    async with SqsBench() as bench:
        source, other = await bench.source(), await bench.source()
        await bench.publish(Message(id="a"), Message(id="b"))
        nacked, extended = await all_of(source, 2)
        await source.nack(nacked, 86_400)
        await source.extend([extended], 86_400)
        await bench.pass_seconds(11.5 * 3600)
        await bench.publish(Message(id="c"))
        between = await received(other)
        assert ids(between) == ["c"]
        await other.ack(between)
        await source.extend([extended], 7_200)
        await bench.pass_seconds(1_800)
        assert sorted(ids(await all_of(other, 2))) == ["a", "b"]


async def dead_letter_to(queue: str, receives_max: int) -> str:
    """Give a queue a redrive policy; returns the dead-letter queue's name."""
    async with client() as bare:
        dead = new_name("-dead")
        url = (await bare.create_queue(QueueName=dead))["QueueUrl"]
        reply = await bare.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        policy = {"deadLetterTargetArn": reply["Attributes"]["QueueArn"], "maxReceiveCount": receives_max}
        url = (await bare.get_queue_url(QueueName=queue))["QueueUrl"]
        await bare.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(policy)})
    return dead


async def test_poison_goes_to_the_dead_letter_queue_with_id_and_headers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    headers = (("x", b"1"), ("x", b"2"), ("blob", b"\xff"))
    async with SqsBench() as bench:
        dead = await dead_letter_to(bench.name, 2)
        source = await bench.source()
        assert (
            f"moves a message to {dead} after 2 deliveries, but a consumer may make 8 attempts" in caplog.text
        )
        await bench.publish(Message(id="bad", type="t", payload=b"\x00", headers=headers))
        for _ in range(2):
            [delivery] = await received(source)
            await source.nack(delivery, 0)
        await bench.publish(Message(id="good"))
        assert ids(await received(source)) == ["good"]
        graveyard = bench.sqs.queue(dead, wait_seconds=1)
        await graveyard.open()
        [delivery] = await received(graveyard)
        assert (ids([delivery]), delivery.body) == (["bad"], b"\x00")
        assert tuple(pair for pair in delivery.headers if pair[0] in ("x", "blob")) == headers
        await graveyard.close()


async def test_dead_message_that_can_not_be_copied_is_not_deleted(caplog: pytest.LogCaptureFixture) -> None:
    async with SqsBench() as bench:
        dead = new_name("-dead")
        source = bench.sqs.queue(bench.name, wait_seconds=1, dead_letter=dead, create=True)
        await source.open()
        await bench.publish(Message(id="a"))
        [delivery] = await received(source)
        async with client() as bare:
            url = (await bare.get_queue_url(QueueName=dead))["QueueUrl"]
            await bare.delete_queue(QueueUrl=url)
            await source.bury(delivery, "exhausted")
            assert f"no copy of a dead message in {dead}, trying again" in caplog.text
            await bare.create_queue(QueueName=dead)
            await bench.pass_seconds(6)
            [delivery] = await received(source)
            await source.bury(delivery, "exhausted")
            [copy] = (await bare.receive_message(QueueUrl=url, MessageAttributeNames=["All"]))["Messages"]
        assert copy["MessageAttributes"]["message-id"]["StringValue"] == "a"
        assert copy["MessageAttributes"]["oncebox-reason"]["StringValue"] == "exhausted"
        await bench.pass_seconds(31)
        await bench.publish(Message(id="b"))
        assert ids(await received(source)) == ["b"]
        await source.close()


async def test_redrive_policy_that_leaves_room_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async with SqsBench() as bench:
        await bench.source()
        assert "has no redrive policy" in caplog.text
        caplog.clear()
        await dead_letter_to(bench.name, 9)
        await bench.source()
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        tight = bench.sqs.queue(bench.name, attempts=9)
        await tight.open()
        assert "9 attempts" in caplog.text
        await tight.close()


@pytest.mark.parametrize("raw", [False, True])
async def test_message_through_sns_is_the_message(raw: bool) -> None:
    async with SqsBench() as bench, client() as bare, client("sns") as sns:
        topic = (await sns.create_topic(Name=new_name()))["TopicArn"]
        url = (await bare.get_queue_url(QueueName=bench.name))["QueueUrl"]
        arn = (await bare.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"]))["Attributes"][
            "QueueArn"
        ]
        attributes = {"RawMessageDelivery": str(raw).lower()}
        await sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=attributes)
        values: dict[str, Any] = {
            "message-id": {"DataType": "String", "StringValue": "evt-1"},
            "type": {"DataType": "String", "StringValue": "order.created"},
        }
        if not raw:  # moto can't hand out what it passes on raw as bytes
            values["blob"] = {"DataType": "Binary", "BinaryValue": b"\xff\x00"}
        await sns.publish(TopicArn=topic, Message='{"order": 7}', MessageAttributes=values)
        reply = await sns.publish(TopicArn=topic, Message="nameless")
        source = await bench.source()
        first, second = await all_of(source, 2)
        who = source.identity.resolve(first)
        assert (who.id, who.type, who.payload) == ("evt-1", "order.created", b'{"order": 7}')
        assert raw or ("blob", b"\xff\x00") in first.headers
        assert source.identity.resolve(second).id is None, "an id made by the broker is none unless named"
        named = Identity(id=by_message_id).resolve(second).id
        assert named == (second.provenance["message_id"] if raw else reply["MessageId"])
        assert second.body == b"nameless"


async def test_id_that_sqs_makes_from_the_content_is_none() -> None:
    name = new_name(".fifo")
    async with client() as bare:
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        url = (await bare.create_queue(QueueName=name, Attributes=attributes))["QueueUrl"]
        await bare.send_message(QueueUrl=url, MessageBody="hello", MessageGroupId="k")
        await bare.send_message(
            QueueUrl=url, MessageBody="hello", MessageGroupId="k", MessageDeduplicationId="evt-1"
        )
    source = sqs().queue(name, wait_seconds=1)
    await source.open()
    first, second = await all_of(source, 2)
    assert source.identity.resolve(first).id is None
    assert source.identity.resolve(second).id == "evt-1"
    assert (first.key, second.key) == ("k", "k")
    await source.close()


async def test_poll_that_nobody_waits_for_any_more_gives_back_what_it_brings() -> None:
    async with SqsBench() as bench:
        source, other = await bench.source(), await bench.source()
        receiving = asyncio.create_task(source.receive(10))
        await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await bench.publish(Message(id="a"))
        # The poll is under way, and may be the one that gets it; then it comes here a second time.
        assert ids(await received(other)) == ["a"]


async def test_closing_waits_for_a_poll_and_gives_back_what_it_brings() -> None:
    async with SqsBench() as bench:
        source = await bench.source()
        receiving = asyncio.create_task(source.receive(10))
        await asyncio.sleep(0)
        await bench.publish(Message(id="a"))
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await source.close()
        assert ids(await received(await bench.source())) == ["a"]
