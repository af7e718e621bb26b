"""Kafka (librdkafka's mock cluster, which keeps nothing on disk): consumers die, join and leave under load."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka import Message as Record

from oncebox.brokers.kafka import Kafka, KafkaSource
from oncebox.brokers.kafka.records import outgoing
from oncebox.message import Message
from tests.brokers.chaos import SOAKING, ChaosBroker, _World, run_chaos
from tests.brokers.kafka_bench import MORTAL, kafka_cluster
from tests.crash.nursery import Nursery
from tests.servers import Postgres
from tests.servers.kafka import Kafka as Cluster
from tests.waiting import eventually

__all__ = ["kafka_cluster"]
pytestmark = pytest.mark.xdist_group("kafka-chaos")

PARTITIONS = 6
MESSAGES = 5_000 if SOAKING else 300


def make_source(servers: str, topic: str) -> KafkaSource:
    """In a consumer's process."""
    return Kafka(servers, **MORTAL).topics(topic, group=f"group-of-{topic}")


class Log(ChaosBroker):
    """A topic whose producer remembers where each message lies."""

    make_source = "tests.brokers.test_kafka_chaos:make_source"
    durable = False

    def __init__(self, cluster: Cluster) -> None:
        self.topic = cluster.create_topic(partitions=PARTITIONS)
        self.arguments = {"servers": cluster.servers, "topic": self.topic}
        common = {"bootstrap.servers": cluster.servers, "log_level": 0}
        self._producer = Producer(common)
        self._asker = Consumer({**common, "group.id": f"group-of-{self.topic}"})
        self.places: list[dict[int, str]] = [{} for _ in range(PARTITIONS)]
        """By partition, the id at each offset."""

    def publish(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._producer.produce(
                self.topic,
                message.payload,
                key=f"key-{hash(message.id) % 50}",
                headers=outgoing(message),
                on_delivery=partial(self._lies, message.id),
            )
        assert self._producer.flush(30) == 0

    def _lies(self, name: str, error: KafkaError | None, record: Record) -> None:
        assert error is None
        self.places[record.partition() or 0][record.offset() or 0] = name

    def restart(self) -> None:
        raise AssertionError("it would forget everything")

    def positions(self) -> list[int]:
        """What the group has committed, by partition."""
        asked = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        return [max(each.offset, 0) for each in self._asker.committed(asked, timeout=30)]

    def is_empty(self) -> bool:
        ends = [max(places, default=-1) + 1 for places in self.places]
        return self.positions() == ends

    def finished_too_soon(self, world: _World) -> set[str]:
        """What the group says is done and has no effect in the database."""
        # Read in this order: what is committed at the first look has had its effect by the second.
        positions = self.positions()
        effects = {name for (name,) in world._rows("SELECT id FROM effects")}
        told = {
            name
            for places, position in zip(self.places, positions, strict=True)
            for offset, name in list(places.items())
            if offset < position
        }
        return told - effects


def test_everything_goes_wrong_at_once(
    kafka_cluster: Cluster, disposable_postgres: Postgres, nursery: Nursery
) -> None:
    run_chaos(Log(kafka_cluster), disposable_postgres, nursery)


def test_consumers_join_and_leave_under_load(
    kafka_cluster: Cluster, postgres: Postgres, nursery: Nursery
) -> None:
    """Two, then three, then others: nothing is lost or doubled, no position passes unfinished work."""
    log = Log(kafka_cluster)
    world = _World(log, postgres, nursery, {})
    ids = [f"m{number}" for number in range(MESSAGES)]
    chance = random.Random(7)
    too_soon: set[str] = set()
    over = threading.Event()
    looks = 0

    def watch() -> None:
        nonlocal looks
        while not over.wait(0.1):
            too_soon.update(log.finished_too_soon(world))
            looks += 1

    def leave(how: signal.Signals) -> None:
        worker = chance.choice([worker for worker in world.workers if worker.status is None])
        worker.kill(how)
        # One that was born a moment ago does not listen yet, and dies of any signal.
        assert worker.wait() in (-how, 0 if how is signal.SIGTERM else -how)

    changes: list[Callable[[], None]] = [
        world.start,
        partial(leave, signal.SIGTERM),
        world.start,
        partial(leave, signal.SIGKILL),
        world.start,
    ]
    changes *= 4 if SOAKING else 1
    watching = threading.Thread(target=watch)
    try:
        world.start()
        world.start()
        watching.start()
        for number, change in enumerate(changes):
            share = ids[number * MESSAGES // len(changes) : (number + 1) * MESSAGES // len(changes)]
            handled = world.effects()
            log.publish([Message(id=name, type="t", payload={"id": name}) for name in share])
            world.wait_for(handled + len(share) // 3)
            change()
        eventually(lambda: world.effects() >= MESSAGES, 300 if SOAKING else 60)
        over.set()
        watching.join()
        world.finish(ids, 60)
    except BaseException:
        print(world.story())
        raise
    finally:
        over.set()
        watching.join()
        world.close()
    assert not too_soon
    assert looks > 5
