"""RabbitMQ on a bench: a queue per test, on a node that many tests share."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

import amqp  # type: ignore[import-untyped]

from oncebox.brokers.contract import Delivery, Source
from oncebox.brokers.rabbitmq import RabbitMQ, RabbitSource
from oncebox.brokers.rabbitmq.topology import Kind
from oncebox.message import Message
from tests.brokers.chaos import ChaosBroker
from tests.brokers.suite import Bench, Features
from tests.servers.proxy import Proxy
from tests.servers.rabbitmq import RabbitMQServer
from tests.waiting import eventually_async


@contextmanager
def another_client(server: RabbitMQServer) -> Iterator[Any]:
    """A channel of another library: to do what oncebox never does, and to see what others see."""
    connection = amqp.Connection(host=f"127.0.0.1:{server.port}", confirm_publish=True)
    connection.connect()
    try:
        yield connection.channel()
    finally:
        connection.close()


def send(server: RabbitMQServer, queue: str, body: bytes = b"{}", **properties: Any) -> None:
    """As another client would, with nothing of ours."""
    with another_client(server) as channel:
        channel.basic_publish(amqp.Message(body, delivery_mode=2, **properties), routing_key=queue)


@asynccontextmanager
async def opened(thing: RabbitSource) -> AsyncIterator[RabbitSource]:
    """Opened for the block, and closed."""
    await thing.open()
    try:
        yield thing
    finally:
        await thing.close()


class RabbitBench(Bench):
    visibility_seconds = hasty_seconds = 0.0
    delay_seconds = 1.6
    slack_seconds = 0.8

    def __init__(self, server: RabbitMQServer, kind: Kind) -> None:
        super().__init__()
        self.server = server
        self.kind = kind
        self.queue = ""
        self.features = Features(
            visibility=False,
            counts=kind == "quorum",
            releases_uncounted=False,
            header_order=False,
        )
        self._ways: dict[int, Proxy] = {}

    async def __aenter__(self) -> Self:
        self.queue = self.server.new_name()
        rabbit = RabbitMQ(self.server.url)
        creating = rabbit.queue(self.queue, create=True, kind=self.kind)
        await creating.open()
        await creating.close()
        self.stack.callback(self._delete)
        self.sink = rabbit.exchange("", routing_key=self.queue)
        self.stack.push_async_callback(self.sink.close)
        return self

    def _delete(self) -> None:
        with another_client(self.server) as channel:
            channel.queue_delete(self.queue)

    def make_source(self) -> Source:
        way = Proxy(self.server.port)
        self.stack.callback(way.close)
        source = RabbitMQ(f"amqp://guest:guest@127.0.0.1:{way.port}/").queue(self.queue)
        source.idle_seconds = 0.02
        self._ways[id(source)] = way
        return source

    async def publish(self, *messages: Message | Delivery, duplicates: int = 0) -> None:
        for message in messages:
            if isinstance(message, Message):
                replies = await self.sink.publish([message] * (1 + duplicates))
                assert replies == [None] * (1 + duplicates)
            else:
                await asyncio.to_thread(self._publish_raw, message)

    def _publish_raw(self, delivery: Delivery) -> None:
        with another_client(self.server) as channel:
            headers = dict(delivery.headers)
            channel.basic_publish(
                amqp.Message(delivery.body, application_headers=headers, **delivery.properties),
                routing_key=self.queue,
            )

    async def pass_seconds(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def heard(self, source: Source) -> None:
        assert isinstance(source, RabbitSource)
        # Twice: whoever asks for more than the one before subscribes anew once that is done. A message that comes
        # between the two subscriptions is one that a quorum queue delivers again.
        for _ in range(2):
            await eventually_async(lambda: source._changing is None)
            await source.flush()

    async def lose(self, source: Source) -> None:
        self._ways[id(source)].cut()


class RabbitChaos(ChaosBroker):
    """A durable queue on a node that is killed and started again."""

    make_source = "tests.brokers.rabbitmq_bench:chaos_source"

    def __init__(self, server: RabbitMQServer, kind: Kind) -> None:
        self.server = server
        self.queue = server.new_name()
        self.arguments = {"url": server.url, "queue": self.queue}
        with another_client(server) as channel:
            channel.queue_declare(
                self.queue, durable=True, auto_delete=False, arguments={"x-queue-type": kind}
            )

    def publish(self, messages: Sequence[Message]) -> None:
        async def publish() -> None:
            sink = RabbitMQ(self.server.url).exchange("", routing_key=self.queue)
            replies = await sink.publish(messages)
            await sink.close()
            assert replies == [None] * len(messages)

        asyncio.run(publish())

    def restart(self) -> None:
        self.server.restart()

    def is_empty(self) -> bool:
        with another_client(self.server) as channel:
            # Unanswered ones are not counted, but with no consumer left there are none of those.
            _, ready, _ = channel.queue_declare(self.queue, passive=True)
        return bool(ready == 0)


def chaos_source(url: str, queue: str) -> Source:
    return RabbitMQ(url).queue(queue)
