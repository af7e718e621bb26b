"""The brokers that throughput is measured behind, each with its own client's bare loop.

Servers run as they ship, not as the tests want them: Redis and NATS sync by time, RabbitMQ's queue is a
durable classic one. Kafka is librdkafka's mock cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from benchmarks.comparison import Comparison
from benchmarks.contenders.behind import Bare, BareLoop, Behind, Broker
from benchmarks.contenders.clients import AioPika, ConfluentKafka, NatsPy, RedisPy
from oncebox import Message
from oncebox.brokers.contract import Sink, Source
from oncebox.brokers.kafka import Kafka
from oncebox.brokers.nats import Nats
from oncebox.brokers.rabbitmq import RabbitMQ
from oncebox.brokers.redis import Redis

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
        return AioPika(self.server.url, name)


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
        return NatsPy(self.server.url, name)


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
        return RedisPy(self.server.url, name)


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
        return ConfluentKafka({**self.words, "bootstrap.servers": self.server.servers}, name)


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
