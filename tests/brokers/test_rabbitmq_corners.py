"""What only RabbitMQ does: topology, credentials, delay queues, exchanges, and messages of other clients."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import amqp  # type: ignore[import-untyped]
import pytest

from oncebox.brokers.contract import BrokerUnavailable, Delivery, Sink, Source
from oncebox.brokers.rabbitmq import RabbitMQ, RabbitSource, topology
from oncebox.brokers.rabbitmq.delays import step_milliseconds
from oncebox.errors import BrokerError, ConfigError, MessageError, QueueFull
from oncebox.identity import Identity, field
from oncebox.message import Message
from tests.brokers.rabbitmq_bench import another_client
from tests.brokers.suite import ids, received
from tests.core.kit import Shop, effect
from tests.servers import Proxy
from tests.servers.process import free_port
from tests.servers.rabbitmq import RabbitMQServer
from tests.waiting import eventually_async

pytestmark = pytest.mark.xdist_group("rabbitmq")


@pytest.fixture
def name(rabbitmq: RabbitMQServer) -> str:
    return rabbitmq.new_name()


@pytest.fixture
def rabbit(rabbitmq: RabbitMQServer) -> RabbitMQ:
    return RabbitMQ(rabbitmq.url)


@asynccontextmanager
async def opened(thing: RabbitSource) -> AsyncIterator[RabbitSource]:
    await thing.open()
    try:
        yield thing
    finally:
        await thing.close()


def send(server: RabbitMQServer, queue: str, body: bytes = b"{}", **properties: Any) -> None:
    """As another client would, with nothing of ours."""
    with another_client(server) as channel:
        channel.basic_publish(amqp.Message(body, delivery_mode=2, **properties), routing_key=queue)


# Topology


async def test_missing_queue_is_named_with_how_to_create_it(rabbit: RabbitMQ) -> None:
    with pytest.raises(ConfigError, match=r"no queue 'nowhere' in vhost '/'.*create=True"):
        await rabbit.queue("nowhere").open()


async def test_created_queue_is_a_durable_quorum_queue(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str
) -> None:
    async with opened(rabbit.queue(name, create=True)) as source:
        assert source.counts_deliveries
        assert not source.pins_keys
    with another_client(rabbitmq) as channel:
        arguments = {"x-queue-type": "quorum"}
        channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)


async def test_what_a_queue_is_need_not_be_said(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str
) -> None:
    with another_client(rabbitmq) as channel:
        arguments = {
            "x-max-length": 5,
            "x-dead-letter-exchange": "amq.fanout",
            "x-single-active-consumer": True,
        }
        channel.queue_declare(name, durable=False, auto_delete=False, arguments=arguments)
    async with opened(rabbit.queue(name)) as source:
        assert (source.counts_deliveries, source.pins_keys) == (False, True)


async def test_words_that_the_queue_contradicts_are_refused_with_both(rabbit: RabbitMQ, name: str) -> None:
    await (source := rabbit.queue(name, create=True, kind="classic")).open()
    await source.close()
    with pytest.raises(ConfigError, match=r"kind='quorum' was said, but .* 'classic'"):
        await rabbit.queue(name, kind="quorum").open()
    with pytest.raises(ConfigError, match=r"single_active_consumer=True was said, but .* False"):
        await rabbit.queue(name, single_active_consumer=True).open()


@pytest.mark.parametrize(
    ("limit", "exchange", "warns"), [(5, None, True), (5, "amq.fanout", False), (None, None, False)]
)
async def test_delivery_limit_without_a_dead_letter_exchange_warns(
    rabbit: RabbitMQ,
    name: str,
    caplog: pytest.LogCaptureFixture,
    limit: int | None,
    exchange: str | None,
    warns: bool,
) -> None:
    caplog.set_level(logging.WARNING, "oncebox")
    async with opened(rabbit.queue(name, create=True, delivery_limit=limit, dead_letter_exchange=exchange)):
        pass
    async with opened(rabbit.queue(name)):
        pass
    said = [
        record.message for record in caplog.records if "drops a message after 5 deliveries" in record.message
    ]
    assert len(said) == (2 if warns else 0)


@pytest.mark.parametrize(
    ("version", "warns"), [((3, 13), False), ((4, 0), True), ((4, 1), True), ((), False)]
)
def test_limit_that_rabbitmq_4_sets_by_itself_warns(
    version: tuple[int, ...], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    link = SimpleNamespace(version=version)
    topology._warn(cast("Any", link), "q", topology.QueueFacts(kind="quorum", arguments={}))
    assert ("after 20 deliveries" in caplog.text) == warns


async def test_dead_letter_exchange_catches_what_is_over_the_limit(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str
) -> None:
    with another_client(rabbitmq) as channel:
        channel.exchange_declare(f"{name}.dead", "fanout", durable=True, auto_delete=False)
        channel.queue_declare(f"{name}.dead", durable=True, auto_delete=False)
        channel.queue_bind(f"{name}.dead", f"{name}.dead")
    words: dict[str, Any] = {"create": True, "delivery_limit": 2, "dead_letter_exchange": f"{name}.dead"}
    async with opened(rabbit.queue(name, **words)) as source, opened(rabbit.queue(f"{name}.dead")) as dead:
        send(rabbitmq, name, message_id="a", application_headers={"h": "1"})
        for count in (1, 2, 3):
            [delivery] = await received(source)
            assert delivery.deliveries == count
            await source.nack(delivery, 0)
        [buried] = await received(dead)
        assert ids([buried]) == ["a"]
        assert ("h", b"1") in buried.headers


@pytest.mark.parametrize("said", [True, False])
async def test_dead_message_goes_to_the_dead_letter_exchange_that_was_said(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str, shop: Shop, said: bool
) -> None:
    with another_client(rabbitmq) as channel:
        channel.queue_declare(f"{name}.dead", durable=True, auto_delete=False)
        channel.queue_bind(f"{name}.dead", "amq.fanout")
        creating = rabbit.queue(name, create=True, dead_letter_exchange="amq.fanout")
        await creating.open()
        await creating.close()
        source = creating if said else rabbit.queue(name)
        shop.handler(shop.consumer("billing", source), "other")(effect)
        send(rabbitmq, name, message_id="a", type="unknown", application_headers={"h": "1"})
        async with shop.app.running():
            await eventually_async(lambda: shop.count("dead") == 1, 30)
        await eventually_async(lambda: not channel.queue_declare(name, passive=True).message_count, 30)
        buried = channel.basic_get(f"{name}.dead")
    assert (buried is not None) == said
    if said:
        assert (buried.properties["message_id"], buried.headers["h"]) == ("a", "1")
        assert buried.headers["x-first-death-reason"] == "rejected"


async def test_exclusive_queue_can_not_be_shared(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str
) -> None:
    with another_client(rabbitmq) as channel:
        channel.queue_declare(name, exclusive=True)
        with pytest.raises(ConfigError, match="exclusive to another connection"):
            await rabbit.queue(name).open()


# Who may come in


async def test_wrong_password_is_told_without_it(rabbitmq: RabbitMQServer) -> None:
    url = f"amqp://guest:hunter2@127.0.0.1:{rabbitmq.port}/"
    for thing in (RabbitMQ(url).queue("q"), RabbitMQ(url).exchange("e")):
        with pytest.raises(ConfigError, match="refuses user 'guest'") as refused:
            await thing.open()
        assert "hunter2" not in str(refused.value)
        assert refused.value.__cause__ is None


async def test_missing_vhost_is_named(rabbitmq: RabbitMQServer) -> None:
    with pytest.raises(ConfigError, match="vhost 'elsewhere'"):
        await RabbitMQ(f"{rabbitmq.url}elsewhere").queue("q").open()


async def test_unreachable_broker_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    url = f"amqp://guest:hunter2@127.0.0.1:{free_port()}/"
    for thing in (RabbitMQ(url).queue("q"), RabbitMQ(url).exchange("e")):
        with pytest.raises(BrokerUnavailable, match=r"RabbitMQ at 127\.0\.0\.1") as away:
            await thing.open()
        assert "hunter2" not in str(away.value)
        assert "\n" not in str(away.value)
    assert not caplog.records, "and nothing is logged behind the caller's back"


@pytest.mark.parametrize("url", ["", "http://h", "amqp://", "amqp://u:hunter2@h:port/"])
def test_url_that_is_none_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RabbitMQ(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [{"prefetch": 0}, {"kind": "stream"}, {"delivery_limit": 0}, {"kind": "classic", "delivery_limit": 3}],
)
def test_words_that_can_not_be_are_refused(rabbit: RabbitMQ, words: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="queue 'q'"):
        rabbit.queue("q", **words)


def test_making_sources_and_sinks_opens_nothing() -> None:
    rabbit = RabbitMQ("amqp://nobody@host.invalid/")
    source: Source = rabbit.queue("q", single_active_consumer=True)
    sink: Sink = rabbit.exchange("e")
    assert (source.name, sink.name, source.pins_keys, source.in_process) == ("q", "e", True, False)
    with pytest.raises(ConfigError, match="routing_key"):
        rabbit.exchange("")


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


# Messages of other clients


async def test_properties_that_can_not_be_read_stop_nothing(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str
) -> None:
    """A header whose name is not UTF-8, and a time that is none: each would end the connection for ever."""
    async with opened(rabbit.queue(name, create=True)) as source:
        send(rabbitmq, name, b"name", message_id="n", application_headers={"caf\udce9": 1})
        send(rabbitmq, name, b"time", message_id="t", timestamp=2**60)
        send(rabbitmq, name, b"good", message_id="good")
        deliveries: list[Delivery] = []
        while len(deliveries) < 3:
            deliveries += await received(source)
        *unreadable, good = deliveries
        assert [delivery.body for delivery in unreadable] == [b"name", b"time"]
        for broken, kept in zip(unreadable, (b"caf\xed\xb3\xa9", b"\x01t"), strict=True):
            assert kept in dict(broken.headers)["x-oncebox-unreadable-properties"]
            assert source.identity.resolve(broken).id is None
        assert ids([good]) == ["good"]


async def test_identity_is_found_where_the_binding_says(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str
) -> None:
    identity = Identity(id=field("order.id"), source="shop")
    async with opened(
        rabbit.queue(name, type="order.created", identity=identity, create=True, key="account")
    ) as source:
        send(rabbitmq, name, b'{"order": {"id": 7}}', application_headers={"account": "k"})
        [delivery] = await received(source)
        who = source.identity.resolve(delivery)
        assert (who.id, who.source, who.type, delivery.key) == ("7", "shop", "order.created", "k")


@pytest.mark.parametrize("state", ["text", {"headers": ["x"], "deliveries": "many"}, [1]])
async def test_header_of_ours_that_somebody_else_sends_does_no_harm(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str, state: Any
) -> None:
    async with opened(rabbit.queue(name, create=True)) as source:
        send(
            rabbitmq,
            name,
            message_id="a",
            application_headers={"x-oncebox": state, "x-delivery-count": "many"},
        )
        [delivery] = await received(source)
        assert (ids([delivery]), delivery.deliveries) == (["a"], 1)
        await source.nack(delivery, 1.01)
        assert ids(await received(source)) == ["a"]


@pytest.mark.parametrize("prefix", ["cloudEvents:", "cloudEvents_"])
async def test_cloudevents_of_other_producers_are_understood(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str, prefix: str
) -> None:
    async with opened(rabbit.queue(name, create=True)) as source:
        attributes = {"specversion": "1.0", "id": "e-1", "source": "/orders", "type": "order.created"}
        headers = {f"{prefix}{name}": value for name, value in attributes.items()}
        send(
            rabbitmq,
            name,
            b"{}",
            content_type="application/json",
            application_headers=headers,
            message_id="m",
        )
        who = source.identity.resolve((await received(source))[0])
        assert (who.id, who.source, who.type) == ("e-1", "/orders", "order.created")


# Exchanges


async def test_published_message_is_a_cloudevent_that_other_clients_can_read(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str
) -> None:
    with another_client(rabbitmq) as channel:
        channel.queue_declare(name, durable=True, auto_delete=False)
        sink = rabbit.exchange(name, create=True)
        await sink.open()
        channel.queue_bind(name, name, "order.*")
        message = Message(
            id="e-1", type="order.created", source="shop", key="k", payload={"a": 1},
            headers=(("h", b"1"), ("h", b"2"), ("ce_id", b"of another"), ("blob", b"\xff")),
        )  # fmt: skip
        assert await sink.publish([message]) == [None]
        await sink.close()
        seen = channel.basic_get(name)
    assert (seen.body, seen.properties["message_id"], seen.properties["type"]) == (
        b'{"a":1}',
        "e-1",
        "order.created",
    )
    assert (seen.properties["delivery_mode"], seen.properties["content_type"]) == (2, "application/json")
    assert seen.headers == {
        "h": ["1", "2"], "blob": b"\xff", "cloudEvents_specversion": "1.0", "cloudEvents_id": "e-1",
        "cloudEvents_source": "shop", "cloudEvents_type": "order.created", "cloudEvents_partitionkey": "k",
    }  # fmt: skip


async def test_message_that_is_refused_is_its_own_error_and_no_others(
    rabbit: RabbitMQ, rabbitmq: RabbitMQServer, name: str
) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    with another_client(rabbitmq) as channel:
        channel.queue_declare(name, durable=True, auto_delete=False)
        channel.queue_declare(f"{name}.full", durable=True, auto_delete=False, arguments=arguments)
        sink = rabbit.exchange(name, create=True)
        await sink.open()
        channel.queue_bind(name, name, "a")
        channel.queue_bind(f"{name}.full", name, "full")
        messages = [
            Message(id="1", type="a"), Message(id="2", type="unbound"), Message(id="1", type="a"),
            Message(id="3", type="full"), Message(id="4", type="full"), Message(id="5", type="full"),
            Message(id="6", type="a", headers={"CC": b"elsewhere"}), Message(id="7" * 300, type="a"),
            Message(id="8" * 300, type="a", source="shop"), Message(id="9", type="a", headers={"n" * 200: b""}),
        ]  # fmt: skip
        replies = await sink.publish(messages)
        await sink.close()
        assert channel.queue_declare(name, passive=True).message_count == 3
    kinds = [type(reply) for reply in replies]
    assert kinds[:3] == [type(None), BrokerError, type(None)]
    assert "no queue for routing key 'unbound'" in str(replies[1])
    assert (kinds[3], kinds[5]) == (type(None), QueueFull)
    assert kinds[6:] == [MessageError, MessageError, type(None), MessageError]


async def test_two_of_one_id_that_are_both_returned_are_both_errors(rabbit: RabbitMQ, name: str) -> None:
    sink = rabbit.exchange("", routing_key=f"{name}-nowhere")
    await sink.open()
    try:
        message = Message(id="m", source="shop", type="order.created", payload=b"{}")
        replies = await asyncio.gather(*(sink.publish([message]) for _ in range(5)))
    finally:
        await sink.close()
    assert [type(reply) for [reply] in replies] == [BrokerError] * 5


async def test_topic_of_a_publication_is_its_routing_key(rabbit: RabbitMQ, name: str) -> None:
    async with opened(rabbit.queue(name, create=True)) as source:
        sink = rabbit.exchange("", routing_key="another")
        assert await sink.publish([Message(id="a", provenance={"topic": name})]) == [None]
        await sink.close()
        assert ids(await received(source)) == ["a"]


async def test_long_id_arrives_whole(rabbit: RabbitMQ, name: str) -> None:
    async with opened(rabbit.queue(name, create=True)) as source:
        sink = rabbit.exchange("", routing_key=name)
        assert await sink.publish([Message(id="x" * 500, source="s")]) == [None]
        await sink.close()
        assert source.identity.resolve((await received(source))[0]).id == "x" * 500


async def test_missing_exchange_is_named_with_how_to_create_it(rabbit: RabbitMQ, name: str) -> None:
    with pytest.raises(ConfigError, match=f"no exchange '{name}' in vhost '/'.*create=True"):
        await rabbit.exchange(name).open()
    sink = rabbit.exchange(name, create=True, type="fanout")
    await sink.open()
    await sink.close()
    with pytest.raises(ConfigError, match="not as a durable 'topic' exchange"):
        await rabbit.exchange(name, create=True).open()


async def test_sink_comes_back_after_a_loss(rabbitmq: RabbitMQServer, rabbit: RabbitMQ, name: str) -> None:
    with Proxy(rabbitmq.port) as way:
        async with opened(rabbit.queue(name, create=True)) as source:
            sink = RabbitMQ(f"amqp://guest:guest@127.0.0.1:{way.port}/").exchange("", routing_key=name)
            await sink.open()
            way.cut(refuse=True)
            [reply] = await sink.publish([Message(id="a")])
            assert isinstance(reply, BrokerUnavailable)
            way.pass_through()
            assert await sink.publish([Message(id="a")]) == [None]
            await sink.close()
            assert ids(await received(source)) == ["a"]
