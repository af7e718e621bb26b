"""The brokers that throughput is measured behind, each with its own client's bare loop.

Servers run as they ship, not as the tests want them: Redis and NATS sync by time, RabbitMQ's queue is a
durable classic one. Kafka is librdkafka's mock cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from benchmarks.comparison import Comparison
from benchmarks.contenders.behind import Bare, BareLoop, Behind, Broker, Effect
from oncebox import Message
from oncebox.brokers.contract import Sink, Source
from oncebox.brokers.kafka import Kafka
from oncebox.brokers.nats import Nats
from oncebox.brokers.rabbitmq import RabbitMQ
from oncebox.brokers.redis import Redis

CHUNK = 100
"""How many a bare loop asks its broker for at a time, where it asks."""
BARS = {"batch": 1.8, "single": 0.8}


class Private:
    """A server that runs while anybody uses it."""

    label = ""

    def __init__(self) -> None:
        self._users = 0
        self.server: Any = None
        self._sinks: dict[str, Sink] = {}

    def start(self) -> Any:
        """A server, running."""
        raise NotImplementedError

    def sink(self, name: str) -> Sink:
        """Where the messages of a slice are put."""
        raise NotImplementedError

    def enter(self) -> None:
        """See `Broker.enter`."""
        if not self._users:
            self.server = self.start()
        self._users += 1

    def leave(self) -> None:
        """See `Broker.leave`."""
        self._users -= 1
        if not self._users:
            self.server.close()

    async def make(self, name: str) -> None:
        """See `Broker.make`."""
        await self.put(name, [])

    async def put(self, name: str, messages: Sequence[Message]) -> None:
        """See `Broker.put`."""
        sink = self.sink(name)
        await sink.open()
        for start in range(0, len(messages), 1_000):
            assert not any(await sink.publish(messages[start : start + 1_000]))
        await sink.close()


class RabbitMQBroker(Private):
    """RabbitMQ, by aio-pika."""

    label = "RabbitMQ"

    def start(self) -> Any:
        from tests.servers.rabbitmq import RabbitMQServer

        return RabbitMQServer().start()

    def sink(self, name: str) -> Sink:
        return self._rabbit().exchange("", routing_key=name)

    async def make(self, name: str) -> None:
        queue = self._rabbit().queue(name, create=True, kind="classic")
        await queue.open()
        await queue.close()

    def source(self, name: str) -> Source:
        return self._rabbit().queue(name)

    def _rabbit(self) -> RabbitMQ:
        return RabbitMQ(self.server.url)

    def bare(self, name: str) -> Bare:
        return _AioPika(self.server.url, name)


class _AioPika:
    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name

    async def open(self) -> None:
        import aio_pika

        self._connection = await aio_pika.connect_robust(self._url)
        channel = await self._connection.channel()
        await channel.set_qos(prefetch_count=CHUNK)
        self._messages = (await channel.get_queue(self._name)).iterator()
        await self._messages.consume()

    async def work(self, count: int, effect: Effect) -> None:
        for _ in range(count):
            message = await anext(self._messages)
            await effect(message.body)
            await message.ack()

    async def close(self) -> None:
        await self._messages.close()
        await self._connection.close()


class NatsBroker(Private):
    """NATS JetStream, by nats-py."""

    label = "NATS"

    def start(self) -> Any:
        from tests.servers.nats import NatsServer

        server = NatsServer()
        settings = server._folder / "nats.conf"
        settings.write_text(settings.read_text().replace(", sync_interval: always", ""))
        return server.start()

    def sink(self, name: str) -> Sink:
        return self._nats().subject(name, stream=name, create=True)

    def source(self, name: str) -> Source:
        return self._nats().stream(name, consumer="bench", create=True)

    def _nats(self) -> Nats:
        return Nats(self.server.url)

    def bare(self, name: str) -> Bare:
        return _NatsPy(self.server.url, name)


class _NatsPy:
    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name

    async def open(self) -> None:
        import nats

        self._client = await nats.connect(self._url)
        jetstream = self._client.jetstream()
        self._pull = await jetstream.pull_subscribe(self._name, "bench", stream=self._name)

    async def work(self, count: int, effect: Effect) -> None:
        while count:
            for message in await self._pull.fetch(min(CHUNK, count)):
                await effect(message.data)
                await message.ack()
                count -= 1

    async def close(self) -> None:
        await self._client.close()


class RedisBroker(Private):
    """Redis Streams, by redis-py."""

    label = "Redis"

    def start(self) -> Any:
        from tests.servers.redis import RedisServer

        return RedisServer("--appendfsync", "everysec").start()

    def sink(self, name: str) -> Sink:
        return self._redis().topic(name, create=True)

    async def make(self, name: str) -> None:
        source = self._redis().stream(name, group="bench", create=True)
        await source.open()
        await source.close()

    def source(self, name: str) -> Source:
        return self._redis().stream(name, group="bench")

    def _redis(self) -> Redis:
        return Redis(self.server.url)

    def bare(self, name: str) -> Bare:
        return _RedisPy(self.server.url, name)


class _RedisPy:
    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name

    async def open(self) -> None:
        from redis.asyncio import Redis as Client

        self._client = Client.from_url(self._url)

    async def work(self, count: int, effect: Effect) -> None:
        while count:
            found: Any = await self._client.xreadgroup(
                "bench", "bare", {self._name: ">"}, count=min(CHUNK, count), block=1000
            )
            for _, entries in found:
                for id_, fields in entries:
                    await effect(fields[b"payload"])
                    await self._client.xack(self._name, "bench", id_)
                    count -= 1

    async def close(self) -> None:
        await self._client.aclose()


class KafkaBroker(Private):
    """Kafka's protocol, by confluent-kafka."""

    label = "Kafka (mock cluster)"
    # The mock answers a fetch of nothing only after its full wait.
    words: ClassVar[dict[str, Any]] = {"fetch.wait.max.ms": 10, "log_level": 0}

    def start(self) -> Any:
        from tests.servers.kafka import Kafka as Cluster

        return Cluster()

    def sink(self, name: str) -> Sink:
        return self._kafka().topic(name)

    async def make(self, name: str) -> None:
        self.server.create_topic(name)

    def source(self, name: str) -> Source:
        return self._kafka().topics(name, group=name)

    def _kafka(self) -> Kafka:
        return Kafka(self.server.servers, **self.words)

    def bare(self, name: str) -> Bare:
        return _ConfluentKafka({**self.words, "bootstrap.servers": self.server.servers}, name)


class _ConfluentKafka:
    """Positions are stored by hand after each transaction, and committed by the client as time goes by."""

    def __init__(self, words: dict[str, Any], name: str) -> None:
        self._words = words
        self._name = name

    async def open(self) -> None:
        from confluent_kafka import Consumer

        self._consumer = Consumer(
            {
                **self._words, "group.id": self._name, "auto.offset.reset": "earliest",
                "enable.auto.offset.store": False, "auto.commit.interval.ms": 500,
            }
        )  # fmt: skip
        self._consumer.subscribe([self._name])

    async def work(self, count: int, effect: Effect) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._work, count, effect)

    def _work(self, count: int, effect: Effect) -> None:
        while count:
            record = self._consumer.poll(1.0)
            if record is None or record.error():
                continue
            effect(record.value() or b"")
            self._consumer.store_offsets(record)
            count -= 1

    async def close(self) -> None:
        self._consumer.close()


KINDS: dict[str, tuple[Callable[[], Broker], str]] = {
    "rabbitmq": (RabbitMQBroker, "asyncpg"),
    "kafka": (KafkaBroker, "psycopg"),
    "nats": (NatsBroker, "asyncpg"),
    "redis": (RedisBroker, "asyncpg"),
}
"""By slug: the broker, and the driver that fits its client; a client that blocks, a driver that does."""


def comparisons() -> list[Comparison]:
    """Each broker, in batches and one by one, against its client's bare loop."""
    return [_comparison(slug, how) for slug in KINDS for how in BARS]


def _comparison(slug: str, how: str) -> Comparison:
    kind, driver = KINDS[slug]
    broker = kind()
    policy = {"batch": 100} if how == "batch" else {}
    said = "batch=100" if how == "batch" else "one by one"
    return Comparison(
        f"broker_{slug}_{how}",
        f"{broker.label}: inline, {said}, one process, against a bare loop without deduplication",
        lambda driver: BareLoop(broker, driver),
        lambda driver: Behind(broker, driver, **policy),
        (driver,),
        bar=BARS[how],
        slice_factor=2,
    )
