"""RabbitMQ: connections that are lost, what a source holds, and delays."""

import asyncio
import time
from typing import Any

import pytest

from oncebox.brokers.contract import BrokerUnavailable, Delivery
from oncebox.brokers.rabbitmq import RabbitMQ
from oncebox.brokers.rabbitmq.delays import step_milliseconds
from oncebox.message import Message
from tests.brokers.rabbitmq_bench import another_client, opened, send
from tests.brokers.suite import ids, received
from tests.servers import Proxy
from tests.servers.rabbitmq import RabbitMQServer
from tests.waiting import eventually_async

pytestmark = pytest.mark.xdist_group("rabbitmq")


# Losses


async def test_waiting_receive_is_told_of_a_loss_and_the_next_one_connects_again(
    rabbitmq: RabbitMQServer, name: str
) -> None:
    with Proxy(rabbitmq.port) as way:
        url = f"amqp://guest:guest@127.0.0.1:{way.port}/"
        async with opened(RabbitMQ(url).queue(name, create=True)) as source:
            waiting = asyncio.create_task(received(source))
            await eventually_async(lambda: source._subscription is not None and source._subscription.prefetch)
            way.cut(refuse=True)
            with pytest.raises(BrokerUnavailable):
                await waiting
            with pytest.raises(BrokerUnavailable, match="RabbitMQ at"):
                await received(source)
            way.pass_through()
            send(rabbitmq, name, message_id="a")
            assert ids(await received(source)) == ["a"]


async def test_broker_that_falls_silent_while_it_is_asked_is_a_loss_and_no_cancellation(
    rabbitmq: RabbitMQServer, rabbit: RabbitMQ, name: str
) -> None:
    # aiormq gives up what waits on a connection without heartbeats by CancelledError, which would end whoever
    # receives, publishes or answers for good, and quietly.
    with Proxy(rabbitmq.port) as way:
        through = RabbitMQ(f"amqp://guest:guest@127.0.0.1:{way.port}/?heartbeat=1")
        async with opened(through.queue(name, create=True)) as source:
            sink = through.exchange("", routing_key=name)
            await sink.open()
            way.go_silent()
            receiving, reply = await asyncio.gather(
                received(source), sink.publish([Message(id="a")]), return_exceptions=True
            )
            assert isinstance(receiving, BrokerUnavailable)
            assert isinstance(reply, list)
            assert isinstance(reply[0], BrokerUnavailable)
            way.cut()
            # Not heard by the first connection's channel: another one is opened while the next message is sent.
            assert await sink.publish([Message(id="b")]) == [None]
            assert "b" in ids(await received(source))
            await sink.close()


async def test_channel_that_is_lost_between_two_answers_is_no_error(
    rabbitmq: RabbitMQServer, rabbit: RabbitMQ, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(rabbit.queue(name, create=True)) as source:
        for number in range(5):
            send(rabbitmq, name, message_id=str(number))
        held: list[Delivery] = []
        while len(held) < 5:
            held += await received(source)
        subscription = source._subscription
        assert subscription is not None

        async def losing(tag: int, **words: Any) -> None:
            subscription.end(BrokerUnavailable("lost"))

        monkeypatch.setattr(subscription.channel, "basic_ack", losing)
        monkeypatch.setattr(subscription.channel, "basic_nack", losing)
        await source.ack(held[1:4:2])
        await source.release(held)
        again: list[Delivery] = []
        while len(again) < 5:
            again += await received(source)
        assert sorted(ids(again)) == [str(number) for number in range(5)]
        await source.ack(again)


async def test_sink_that_is_not_let_in_blames_no_message(rabbitmq: RabbitMQServer, name: str) -> None:
    sink = RabbitMQ(f"amqp://guest:wrong@127.0.0.1:{rabbitmq.port}/").exchange("", routing_key=name)
    [reply] = await sink.publish([Message(id="a")])
    assert isinstance(reply, BrokerUnavailable), "a relay would park the message for good"
    assert "refuses user 'guest'" in str(reply)
    await sink.close()


async def test_deleted_queue_is_unavailable_until_it_is_back(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str
) -> None:
    async with opened(rabbit.queue(name, create=True, kind="classic")) as source:
        waiting = asyncio.create_task(received(source))
        await eventually_async(lambda: source._subscription is not None and source._subscription.prefetch)
        with another_client(rabbitmq) as channel:
            channel.queue_delete(name)
        with pytest.raises(BrokerUnavailable, match="was it deleted"):
            await waiting
        with pytest.raises(BrokerUnavailable):
            await received(source)
        with another_client(rabbitmq) as channel:
            channel.queue_declare(
                name, durable=True, auto_delete=False, arguments={"x-queue-type": "classic"}
            )
        send(rabbitmq, name, message_id="a")
        assert ids(await received(source)) == ["a"]


async def test_closing_does_not_wait_for_a_broker_that_is_gone(rabbitmq: RabbitMQServer, name: str) -> None:
    with Proxy(rabbitmq.port) as way:
        source = RabbitMQ(f"amqp://guest:guest@127.0.0.1:{way.port}/").queue(name, create=True)
        await source.open()
        send(rabbitmq, name, message_id="a")
        held = await received(source)
        way.cut(refuse=True)
        async with asyncio.timeout(20):
            await source.ack(held)
            await source.nack(held[0], 5)
            await source.release(held)
            await source.close()


async def test_one_connection_consumes_and_one_publishes(rabbitmq: RabbitMQServer, name: str) -> None:
    with Proxy(rabbitmq.port) as way:
        rabbit = RabbitMQ(f"amqp://guest:guest@127.0.0.1:{way.port}/")
        sinks = [rabbit.exchange("", routing_key=name) for _ in range(2)]
        async with opened(rabbit.queue(name, create=True)) as source, opened(rabbit.queue(name)):
            assert way.connections == 1
            for sink in sinks:
                await sink.open()
                assert await sink.publish([Message(id="a")]) == [None]
            await source.nack((await received(source))[0], 60)
            assert way.connections == 2
        await sinks[0].close()
        assert await sinks[1].publish([Message(id="b")]) == [None]
        await sinks[1].close()
        await eventually_async(lambda: way.connections == 0)


# Prefetch


async def test_prefetch_bounds_what_a_source_holds(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str
) -> None:
    async with opened(rabbit.queue(name, create=True, prefetch=2)) as source:
        for number in range(4):
            send(rabbitmq, name, message_id=str(number))
        held: list[Delivery] = []
        while len(held) < 2:
            held += await received(source, limit=10)
        assert ids(held) == ["0", "1"]
        with another_client(rabbitmq) as channel:
            assert channel.queue_declare(name, passive=True).message_count == 2
        await source.ack(held[:1])
        assert ids(await received(source, limit=10)) == ["2"]


async def test_what_nobody_asks_for_is_left_to_others(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str
) -> None:
    async with opened(rabbit.queue(name, create=True)) as paused, opened(rabbit.queue(name)) as other:
        paused.idle_seconds = 0.05
        send(rabbitmq, name, message_id="a")
        await received(paused, limit=5)
        for number in range(3):
            send(rabbitmq, name, message_id=str(number))
        seen: list[str] = []
        while len(seen) < 3:
            seen += ids(await received(other))
        assert sorted(seen) == ["0", "1", "2"]


# Delays


def test_delays_are_rounded_up_to_few_steps() -> None:
    for seconds in (1.001, 1.5, 2.0, 59.0, 300.0, 86_400.0):
        assert seconds * 1000 <= step_milliseconds(seconds) <= seconds * 1000 * 1.42 + 1
    steps = {step_milliseconds(1.01**number) for number in range(1, 3_000)}
    assert (len(steps), max(steps)) == (43, 2**31)


async def test_copy_that_waited_is_the_same_message(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str
) -> None:
    """Whatever its properties and headers are, and however often it waits."""
    async with opened(rabbit.queue(name, create=True)) as source:
        send(
            rabbitmq, name, b"\x00\xff",
            message_id="a", type="paid", content_type="text/xml", correlation_id="c", user_id="guest",
            expiration="60000", priority=3, reply_to="r", app_id="shop",
            application_headers={
                "text": "\u00e9", "bytes": b"\xff", "number": 7, "yes": True, "float": 1.5, "nothing": None,
                "table": {"a": [1, "b"]}, "list": ["x", "y"], "CC": [f"{name}.copy"],
            },
        )  # fmt: skip
        [first] = await received(source)
        delivery = first
        for count in (2, 3):
            sent = time.monotonic()
            await source.nack(delivery, 1.1)
            [delivery] = await received(source)
            assert time.monotonic() - sent >= 1.1
            assert (delivery.deliveries, delivery.redelivered) == (count, True)
            assert (delivery.body, delivery.properties) == (first.body, first.properties)
            assert sorted(delivery.headers) == sorted(first.headers)
            assert delivery.provenance == first.provenance
        assert dict(first.headers)["bytes"] == b"\xff"
        assert [value for key, value in first.headers if key == "list"] == [b"x", b"y"]
        await source.ack([delivery])


async def test_message_without_an_id_has_none_after_it_waited(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str
) -> None:
    async with opened(rabbit.queue(name, create=True)) as source:
        send(rabbitmq, name)
        [delivery] = await received(source)
        await source.nack(delivery, 1.1)
        [again] = await received(source)
        assert again.redelivered
        assert "message_id" not in again.properties
        assert source.identity.resolve(again).id is None


async def test_without_a_delay_queue_messages_wait_in_the_process(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with another_client(rabbitmq) as channel:  # in the way: a queue of that name which is something else
        channel.queue_declare(
            f"{name}.oncebox-delay.{step_milliseconds(1.1)}", durable=False, auto_delete=False
        )
    async with opened(rabbit.queue(name, create=True)) as source:
        send(rabbitmq, name, message_id="a")
        [delivery] = await received(source)
        sent = time.monotonic()
        await source.nack(delivery, 1.1)
        [again] = await received(source)
        assert time.monotonic() - sent >= 1.1
        assert (ids([again]), again.deliveries) == (["a"], 2)
    assert "no delay queue" in caplog.text
