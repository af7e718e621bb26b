"""What a user may say to librdkafka, and what oncebox says itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncebox.errors import ConfigError

OURS: dict[str, str] = {
    "enable.auto.commit": "oncebox commits an offset when the effects of everything before it are committed",
    "enable.auto.offset.store": "oncebox stores no offset before its message is finished",
    "bootstrap.servers": "it is the first argument: Kafka('host:9092')",
    "group.id": "it is named at the source: kafka.topics('orders', group='billing')",
    "on_commit": "oncebox listens to commits itself",
    "error_cb": "oncebox listens to errors itself; they are logged, and raised where they matter",
    "logger": "librdkafka's log goes to the logger 'oncebox.kafka'",
    "transactional.id": "effects are in your database, not in Kafka; a sink needs no Kafka transactions",
}
_UNDERSCORED = frozenset({"log_level", "oauth_cb", "stats_cb", "throttle_cb"})
"""Settings that are spelled so."""
CONSUMER = {
    "partition.assignment.strategy": "cooperative-sticky",
    # What was written before the group's first start is there to be handled; "latest" would skip it.
    "auto.offset.reset": "earliest",
}
PRODUCER = {
    "enable.idempotence": True,
    # Under the relay's own patience: what it gives up on must not be sent by us later, out of order.
    "message.timeout.ms": 25_000,
}


def checked(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """librdkafka's words with dots, `ConfigError` for those that are oncebox's own.

    A keyword can't hold a dot, so `security_protocol` is `security.protocol`.
    """
    words: dict[str, Any] = {}
    for word, value in config.items():
        name = word if word in OURS or word in _UNDERSCORED else word.replace("_", ".")
        if name in OURS:
            raise ConfigError(f"{where}: {name} can't be set: {OURS[name]}")
        words[name] = value
    return words


def consumer_words(servers: str, group: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """All that a consumer is made with."""
    words = {**CONSUMER, **config}
    if words.get("group.protocol") == "consumer":
        words.pop("partition.assignment.strategy", None)  # the broker assigns there, and refuses the word
    return {
        **words,
        "bootstrap.servers": servers,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }


def producer_words(servers: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """All that a producer is made with. `ConfigError` when it would lose or double messages."""
    words = {**PRODUCER, **config}
    if "delivery.timeout.ms" in config:
        words.pop("message.timeout.ms")
    if words["enable.idempotence"] not in (True, "true"):
        raise ConfigError("Kafka: enable.idempotence can't be off: a retry would double or reorder messages")
    return {**words, "bootstrap.servers": servers}
