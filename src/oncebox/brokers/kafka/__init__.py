"""Kafka, by confluent-kafka (librdkafka): consumer groups as sources, topics as sinks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

try:
    import confluent_kafka  # noqa: F401 - only to say early, and in plain words, that it is missing
except ImportError as error:  # pragma: no cover
    raise ImportError("oncebox.brokers.kafka needs confluent-kafka: pip install 'oncebox[kafka]'") from error

from oncebox.brokers.contract import bound_identity
from oncebox.brokers.kafka.settings import checked, consumer_words, producer_words
from oncebox.brokers.kafka.sink import KafkaTopic
from oncebox.brokers.kafka.source import KafkaSource
from oncebox.brokers.kafka.watermarks import by_watermark
from oncebox.errors import ConfigError
from oncebox.identity import Identity, Resolver

__all__ = ["Kafka", "KafkaSource", "KafkaTopic"]


class Kafka:
    """A Kafka cluster: `Kafka("host:9092,other:9092", security_protocol="SASL_SSL", …)`. Opens nothing.

    Keywords are librdkafka's settings, with underscores for dots, for sources and sinks alike;
    `topics` and `topic` take more in `config`. `ConfigError` for `enable.auto.commit`,
    `enable.auto.offset.store` and others that would take offsets out of oncebox's hands.
    """

    def __init__(self, servers: str, **config: Any) -> None:
        if not _is_text(servers):
            raise ConfigError("Kafka('host:9092'): name at least one broker")
        self.servers = servers
        self._config = checked(config, "Kafka")

    def __repr__(self) -> str:
        return f"Kafka({self.servers!r})"  # the settings may hold a password

    def topics(
        self,
        *topics: str,
        group: str,
        type: str | Resolver | None = None,  # noqa: A002 - the word that every source uses
        identity: Identity | None = None,
        deduplicate: Literal["ledger", "watermark"] = "ledger",
        dead_letter: str | None = None,
        window: int = 2_000,
        prefetch: int = 1_000,
        prefetch_bytes: int = 32 * 1024 * 1024,
        commit_every: timedelta | float = 0.5,
        drain: timedelta | float = 5.0,
        retention: timedelta | float | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> KafkaSource:
        """A member of the consumer group `group`, subscribed to these topics; `"^orders.*"` is a pattern.

        - `deduplicate`: by the ledger, which knows every message's id, or by `"watermark"`: one row per partition
          says how far it is handled. That tells what is read twice, not what was sent twice;
        - `dead_letter`: a topic that gets a copy of every message that is dead here, with its headers;
        - `window`: how many offsets a partition may be read beyond its committed position;
        - `prefetch`, `prefetch_bytes`: how much may lie in this process without being handed out;
        - `commit_every`: how often positions are committed; a crash repeats at most that much;
        - `drain`: how long a partition that goes to another consumer waits for what is in hand;
        - `retention`: the topics' `retention.ms`, so that a ledger that forgets sooner is refused;
        - `config`: more settings of librdkafka, for this source alone.
        """
        if not topics or not all(map(_is_text, topics)):
            raise ConfigError("kafka.topics('orders', group='billing'): name at least one topic")
        if not _is_text(group):
            raise ConfigError("kafka.topics(…, group='billing'): consumers that share the work share a group")
        where = f"kafka.topics({', '.join(map(repr, topics))})"
        if dead_letter is not None and (not _is_text(dead_letter) or dead_letter in topics):
            raise ConfigError(f"{where}: dead_letter={dead_letter!r}: it is another topic's name, or None")
        if deduplicate not in ("ledger", "watermark"):
            raise ConfigError(f"{where}: deduplicate={deduplicate!r}: it is one of 'ledger', 'watermark'")
        bound = bound_identity(identity, type)
        if deduplicate == "watermark":
            bound = by_watermark(bound, where)
        for word, value in (("window", window), ("prefetch", prefetch), ("prefetch_bytes", prefetch_bytes)):
            if not _is_whole(value):
                raise ConfigError(f"{where}: {word}={value!r}: it is a whole number, 1 or more")
        words = consumer_words(self.servers, group, {**self._config, **checked(config or {}, where)})
        drain_seconds = _seconds(drain, f"{where}: drain")
        if drain_seconds * 1000 >= float(words.get("max.poll.interval.ms", 300_000)):
            raise ConfigError(f"{where}: drain={drain!r} is not less than max.poll.interval.ms")
        return KafkaSource(
            self.servers,
            topics,
            words,
            identity=bound,
            watermarked=deduplicate == "watermark",
            window=window,
            buffer=prefetch,
            buffer_bytes=prefetch_bytes,
            commit_every_seconds=_seconds(commit_every, f"{where}: commit_every"),
            drain_seconds=drain_seconds,
            redelivery_horizon_seconds=None
            if retention is None
            else _seconds(retention, f"{where}: retention"),
            dead_letter=dead_letter,
            producer=producer_words(self.servers, self._config) if dead_letter else {},
        )

    def topic(self, name: str, *, config: Mapping[str, Any] | None = None) -> KafkaTopic:
        """A sink that publishes to the topic `name`, or to the one that a publication names.

        The producer is idempotent, and a message is confirmed when all in-sync replicas have it.
        """
        if not _is_text(name):
            raise ConfigError("kafka.topic('events'): name the topic")
        words = producer_words(
            self.servers, {**self._config, **checked(config or {}, f"kafka.topic({name!r})")}
        )
        return KafkaTopic(self.servers, name, words)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _seconds(value: timedelta | float, where: str) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not _is_amount(seconds):
        raise ConfigError(f"{where}={value!r}: it is a number of seconds, or a timedelta")
    return float(seconds)
