"""RabbitMQ: messages of other clients, and exchanges."""

import asyncio
from typing import Any

import pytest

from oncebox.brokers.contract import BrokerUnavailable, Delivery
from oncebox.brokers.rabbitmq import RabbitMQ
from oncebox.errors import BrokerError, ConfigError, MessageError, QueueFull
from oncebox.identity import Identity, field
from oncebox.message import Message
from tests.brokers.rabbitmq_bench import another_client, opened, send
from tests.brokers.suite import ids, received
from tests.servers import Proxy
from tests.servers.rabbitmq import RabbitMQServer

pytestmark = pytest.mark.xdist_group("rabbitmq")


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
