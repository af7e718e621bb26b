"""What a partition's watermark needs of Kafka: where a record lies, and whether the log is still the same one."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import msgspec
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, TopicCollection, TopicPartition
from confluent_kafka import Message as Record
from confluent_kafka.admin import AdminClient

from oncebox.brokers.kafka.lanes import Facts, Lane
from oncebox.brokers.kafka.logs import Log
from oncebox.brokers.kafka.topology import ends_of
from oncebox.core.place import Place
from oncebox.errors import ConfigError
from oncebox.identity import Envelope, Identity

log = logging.getLogger("oncebox.kafka")

ASK_SECONDS = 2.0
AGAIN_SECONDS = 3.0
"""How old what is known of a log may be, while one of its messages waits."""
_CONSUMERS_ONLY = (
    "auto.offset.reset",
    "enable.auto.",
    "group.",
    "partition.assignment.strategy",
    "session.timeout.ms",
)


Mark = tuple[str, int, int, str]
"""Topic, partition, the last offset that is handled, and the topic's id then."""


class Incarnations:
    """Asks for facts; by the polling thread alone, once per assignment."""

    def __init__(self, words: Mapping[str, Any]) -> None:
        self._words = {word: value for word, value in words.items() if not word.startswith(_CONSUMERS_ONLY)}
        self._client: AdminClient | None = None
        self._tells = True

    def place(self, consumer: Consumer, lane: Lane, record: Record) -> Place:
        """Where a record lies that was just read; asks where the log is new, or goes back: it has lost its end then,
        or is another one."""
        offset = record.offset() or 0
        if lane.facts is None or offset <= lane.last:
            lane.facts = self.facts(consumer, lane.topic, lane.partition)
            lane.last = -1
        kind, stamp = record.timestamp()
        value: Any = record.value()
        return Place(
            topic=lane.topic,
            partition=lane.partition,
            offset=offset,
            after=lane.last,
            raw=value or b"",
            stamp=0 if kind == TIMESTAMP_NOT_AVAILABLE else stamp,
            topic_id=lane.facts.topic_id,
            end=lane.facts.end,
            asked=lane.facts.asked,
        )

    def ask_again(self, consumer: Consumer, lanes: Iterable[Lane]) -> None:
        """Where a message was put off: a topic may change, and a new leader may not know its end at once."""
        for lane in lanes:
            if (
                lane.facts is not None
                and lane.waiting
                and time.monotonic() - lane.facts.asked > AGAIN_SECONDS
            ):
                lane.facts = self.facts(consumer, lane.topic, lane.partition)

    def facts(self, consumer: Consumer, topic: str, partition: int) -> Facts:
        """What is known now; never raises."""
        asked = time.monotonic()
        end = ends_of(consumer, [TopicPartition(topic, partition)]).get((topic, partition))
        return Facts(self._topic_id(topic), end, asked)

    def strayed(self, consumer: Consumer, marks: Iterable[Mark]) -> list[str]:
        """Why each of these can't be of the log that is there now; nothing of those that may be. Never raises."""
        marks = list(marks)
        ends = ends_of(consumer, [TopicPartition(topic, partition) for topic, partition, _, _ in marks])
        ids = {topic: self._topic_id(topic) for topic in sorted({mark[0] for mark in marks})}
        found = []
        for topic, partition, last, topic_id in marks:
            end = ends.get((topic, partition))
            if topic_id and ids[topic] and topic_id != ids[topic]:
                found.append(f"{topic}[{partition}]: the topic's id is {ids[topic]}, and was {topic_id}")
            elif end is not None and end <= last:
                found.append(f"{topic}[{partition}] ends at offset {end}, and offset {last} is handled")
        return found

    def _topic_id(self, topic: str) -> str:
        # Brokers before Kafka 2.8 have none, and a user may not be allowed to see it: asked once, not every time.
        if not self._tells:
            return ""
        try:
            self._client = self._client or AdminClient(self._words, logger=Log())
            answers = self._client.describe_topics(TopicCollection([topic]), request_timeout=ASK_SECONDS)
            return topic_id_of(answers[topic], ASK_SECONDS + 1.0)
        except Exception as error:
            log.info(
                "%s: the cluster does not tell the topic's id (%s); a topic that is made again is known by its end "
                "and its messages alone",
                topic, error,
            )  # fmt: skip
            self._tells = False
            return ""


def topic_id_of(answer: Future[Any], seconds: float) -> str:
    """The id in a description of a topic; the id of all zeros is none."""
    found = str(answer.result(seconds).topic_id or "")
    return "" if not found.strip("A=-0") else found


def by_place(envelope: Envelope) -> str | None:
    """An id from where the record lies and when it was written: what fails is kept under it. The time keeps a
    topic that was made again from using its predecessor's ids."""
    where = envelope.provenance
    if not {"topic", "partition", "offset"} <= where.keys():
        return None
    return f"{where['topic']}:{where['partition']}:{where['offset']}@{where.get('timestamp', 0)}"


def by_watermark(identity: Identity, where: str) -> Identity:
    """The identity of a source whose messages are told by their place; ConfigError where it names another id."""
    if identity.id is not None:
        raise ConfigError(
            f'{where}: deduplicate="watermark" tells messages by their place, and identity=… names another id; keep '
            'one of them (deduplicate="ledger" tells what was sent twice, too)'
        )
    return msgspec.structs.replace(identity, id=by_place)
