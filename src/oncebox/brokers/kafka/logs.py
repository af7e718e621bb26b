"""What librdkafka says: its log into `logging`, its errors into oncebox's."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from oncebox.errors import BrokerError, BrokerUnavailable, ConfigError, OnceboxError, TooLarge

log = logging.getLogger("oncebox.kafka")

_CHATTY = ("FAIL", "ERROR", "MAXPOLL", "CONFWARN", "TERMINATE", "REBALANCE")
"""Facilities that repeat themselves for as long as something is wrong. What matters of them is raised or
logged once by the source or sink itself."""

_UNREACHABLE = frozenset({
    KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._DESTROY,
    KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE, KafkaError._RESOLVE,
    KafkaError._SSL, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._TRANSPORT,
    KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT,
})  # fmt: skip
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_CONFIG = frozenset({KafkaError._INVALID_ARG, KafkaError._NOT_IMPLEMENTED, KafkaError._CONFLICT})


class Log:
    """What librdkafka is given as its logger: repeated lines come as DEBUG, the rest as it is."""

    def log(self, level: int, text: str, *args: Any) -> None:
        """One line of librdkafka; its first argument is the facility."""
        if args and str(args[0]) in _CHATTY:
            level = logging.DEBUG
        log.log(level, text, *args)


def reason_of(error: object) -> KafkaError | None:
    """The Kafka error inside an exception, where there is one."""
    if isinstance(error, KafkaError):
        return error
    inside = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return inside if isinstance(inside, KafkaError) else None


def translated(error: object, where: str) -> OnceboxError:
    """librdkafka's error as one of ours; `where` names the broker and what was tried."""
    reason = reason_of(error)
    if reason is None:
        return BrokerError(f"{where}: {error}")
    code, text = reason.code(), f"{where}: {reason.str()}"
    if code in _UNREACHABLE:
        return BrokerUnavailable(text)
    if code in _TOO_LARGE:
        return TooLarge(f"{text}; raise message.max.bytes here and at the topic, or send less")
    if code in _CONFIG:
        return ConfigError(text)
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        return BrokerUnavailable(f"{text}; the topic may have been deleted: create it, or name another")
    if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED):
        return BrokerUnavailable(f"{text}; grant this user the right to it (kafka-acls.sh --add)")
    return BrokerError(text)
