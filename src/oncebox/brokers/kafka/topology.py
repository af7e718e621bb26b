"""What is asked of the cluster: whether topics are there, where partitions end, how far a group has come."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from oncebox.brokers.kafka.logs import translated
from oncebox.errors import BrokerUnavailable, ConfigError

ASK_SECONDS = 5.0
Places = dict[tuple[str, int], int]
"""An offset by topic and partition."""


def ends_of(consumer: Consumer, partitions: Sequence[TopicPartition]) -> Places:
    """Where the partitions end now; without those that the broker does not tell."""
    if not partitions:
        return {}
    asked = [TopicPartition(each.topic, each.partition, OFFSET_END) for each in partitions]
    try:
        found = consumer.offsets_for_times(asked, timeout=ASK_SECONDS)
    except KafkaException:
        return {}
    return {(each.topic, each.partition): each.offset for each in found if not each.error}


def positions_of(consumer: Consumer, partitions: Sequence[TopicPartition]) -> Places:
    """The group's positions; without those it never had."""
    if not partitions:
        return {}
    try:
        found = consumer.committed(list(partitions), timeout=ASK_SECONDS)
    except KafkaException:
        return {}
    return {(each.topic, each.partition): each.offset for each in found if each.offset >= 0}


def reached(client: Any, topics: Iterable[str], where: str, seconds: float) -> None:
    """Return when a broker answered and has every topic.

    `BrokerUnavailable` when none answered in time; `ConfigError` naming the first topic that is missing
    and how to create it. A name that begins with `^` is a pattern, which may match topics to come.
    """
    try:
        # All topics, not these: asking for one by name creates it where brokers are set up so.
        known = client.list_topics(timeout=seconds).topics
    except KafkaException as error:
        raise BrokerUnavailable(
            f"{translated(error, where)}; is it running, and is the address right? No broker answered "
            f"within {seconds:g} s"
        ) from error
    for topic in topics:
        if topic.startswith("^"):
            try:
                re.compile(topic)
            except re.error as error:
                raise ConfigError(f"{where}: {topic!r} is no pattern: {error}") from error
        elif topic not in known or known[topic].error is not None:
            raise ConfigError(
                f"{where}: there is no topic {topic!r}; create it: kafka-topics.sh --create --topic {topic} "
                "--partitions 6 --replication-factor 3, or check the name and this user's right to see it"
            )
