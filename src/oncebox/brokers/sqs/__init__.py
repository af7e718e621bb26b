"""Amazon SQS, and what speaks like it (LocalStack, ElasticMQ, moto): queues to consume from and to publish to.

Standard and FIFO queues; messages that came through SNS are unwrapped. Needs `oncebox[sqs]`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

try:
    import aiobotocore  # type: ignore[import-untyped] # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("SQS needs the aiobotocore package: pip install 'oncebox[sqs]'") from error

from oncebox.brokers.contract import bound_identity
from oncebox.brokers.sqs.client import Clients, Line
from oncebox.brokers.sqs.deadletter import DeadLetters
from oncebox.brokers.sqs.sink import SqsSink
from oncebox.brokers.sqs.source import VISIBILITY_SECONDS_MAX, SqsSource, by_message_id
from oncebox.clock import Clock, SystemClock
from oncebox.errors import ConfigError
from oncebox.identity import Identity, Resolver
from oncebox.policy import Backoff

__all__ = ["Sqs", "SqsSink", "SqsSource", "by_message_id"]


class Sqs:
    """SQS in one region, or at an endpoint of one's own. Opens nothing until a source or sink is opened.

    Credentials are found as every AWS tool finds them: environment, profile, role. `session` is an
    aiobotocore session that finds them in another way. `ConfigError` for an endpoint that is no URL.
    """

    def __init__(
        self,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        session: Any = None,
        clock: Clock | None = None,
    ) -> None:
        if endpoint_url is not None:
            parts = urlsplit(endpoint_url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ConfigError("Sqs(endpoint_url=…): it is a URL such as http://localhost:4566")
        self._clients = Clients(session, region, endpoint_url)
        self._clock = clock or SystemClock()

    def queue(
        self,
        name: str,
        *,
        type: str | Resolver | None = None,  # noqa: A002 - the word that every source uses
        identity: Identity | None = None,
        visibility_seconds: int = 30,
        wait_seconds: int = 5,
        attempts: int = Backoff().attempts,
        unwrap_sns: bool = True,
        dead_letter: str | None = None,
        create: bool = False,
    ) -> SqsSource:
        """A new subscription to the queue of this name or URL. A name that ends in `.fifo` is a FIFO queue's.

        - `visibility_seconds` (30): how long a delivery may go unanswered, whatever the queue itself says;
          while a handler works it is extended, so that it only matters when a process dies;
        - `wait_seconds` (5): how long one request waits for a message, 1 to 20;
        - `attempts` (8): how many its consumer makes; a redrive policy that allows fewer is warned of;
        - `unwrap_sns` (True): take a message out of the envelope that SNS puts around it;
        - `dead_letter` (none): a queue that gets a copy of every message that is dead for its consumer;
        - `create` (False): make the queue, with SQS's own defaults, when it is not there; the dead-letter queue too.

        `ConfigError` for a name or value that can't be.
        """
        _check("visibility_seconds", visibility_seconds, 1, VISIBILITY_SECONDS_MAX)
        _check("wait_seconds", wait_seconds, 1, 20)
        return SqsSource(
            Line(self._clients, name, create=create),
            identity=bound_identity(identity, type),
            visibility_seconds=visibility_seconds,
            wait_seconds=wait_seconds,
            attempts=attempts,
            unwrap_sns=unwrap_sns,
            clock=self._clock,
            dead_letters=DeadLetters(Line(self._clients, dead_letter, create=create))
            if dead_letter
            else None,
        )

    def sink(self, name: str, *, create: bool = False) -> SqsSink:
        """A sink that sends to the queue of this name or URL; `create` as for `queue`.

        To a FIFO queue, a message's id is its deduplication id and its key its group; those without a key
        have no order among each other.
        """
        return SqsSink(Line(self._clients, name, create=create))


def _check(word: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{word}={value!r}: it is a whole number of seconds, {least} to {most:,}")
