"""RabbitMQ: queues as they are declared, and who may come in."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncebox.brokers.contract import BrokerUnavailable, Sink, Source
from oncebox.brokers.rabbitmq import RabbitMQ, topology
from oncebox.errors import ConfigError
from tests.brokers.rabbitmq_bench import another_client, opened, send
from tests.brokers.suite import ids, received
from tests.core.kit import Shop, effect
from tests.servers.process import free_port
from tests.servers.rabbitmq import RabbitMQServer
from tests.waiting import eventually_async

pytestmark = pytest.mark.xdist_group("rabbitmq")


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
        if not said:
            assert channel.basic_get(f"{name}.dead") is None
            return
        # The queue passes it on a moment after it has let go of it.
        buried = await eventually_async(lambda: channel.basic_get(f"{name}.dead"), 30)
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
