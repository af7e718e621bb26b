"""Whether what is named is there: asked once, when a source or sink opens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaException

from oncebox.brokers.kafka.logs import translated
from oncebox.errors import BrokerUnavailable, ConfigError


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
