"""One queue of SQS, through aiobotocore: found or made, described, asked; and what its errors mean."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any
from urllib.parse import urlsplit

import msgspec
from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
from aiobotocore.session import get_session  # type: ignore[import-untyped]
from botocore import exceptions as boto  # type: ignore[import-untyped]

from oncebox.brokers.sqs.wire import BYTES_MAX_BEFORE
from oncebox.errors import BrokerError, BrokerUnavailable, ConfigError

CONNECT_SECONDS = 5
ANSWER_SECONDS = 10
"""How long SQS may take for an answer, on top of a poll's own wait."""

_MISSING = ("QueueDoesNotExist", "NonExistentQueue", "QueueDeletedRecently")
_REFUSED = (
    "AccessDenied", "InvalidClientTokenId", "SignatureDoesNotMatch", "UnrecognizedClient", "ExpiredToken",
    "InvalidSecurity", "MissingAuthenticationToken", "AuthFailure", "IncompleteSignature", "InvalidAccessKeyId",
    "OptInRequired", "NotAuthorized",
)  # fmt: skip
_BUSY = ("Throttl", "OverLimit", "TooManyRequests", "KmsThrottled", "RequestThrottled")
_ERRORS = (boto.BotoCoreError, boto.ClientError, OSError, TimeoutError)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")


class Facts(msgspec.Struct, frozen=True):
    """What SQS says of a queue."""

    url: str
    retention_seconds: float
    bytes_max: int
    receives_max: int | None
    """After so many deliveries SQS moves a message to its dead-letter queue; None: it never does."""
    dead_letter: str | None


class Clients:
    """One client for all sources and sinks of an event loop: made for the first, closed after the last."""

    def __init__(self, session: Any, region: str | None, endpoint_url: str | None) -> None:
        self._session = session
        self._region = region
        self._endpoint_url = endpoint_url
        self._open: dict[asyncio.AbstractEventLoop, tuple[Any, int]] = {}
        self._making = asyncio.Lock()

    async def enter(self) -> Any:
        """The client, for one more user."""
        loop = asyncio.get_running_loop()
        async with self._making:
            client, users = self._open.get(loop) or (await self._made(), 0)
            self._open[loop] = (client, users + 1)
        return client

    async def leave(self) -> None:
        """One user less."""
        loop = asyncio.get_running_loop()
        client, users = self._open.pop(loop, (None, 0))
        if users > 1:
            self._open[loop] = (client, users - 1)
        elif client is not None:
            await client.__aexit__(None, None, None)

    async def _made(self) -> Any:
        if self._session is None:
            self._session = get_session()
        config = AioConfig(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=20 + ANSWER_SECONDS,
            max_pool_connections=200,  # every source has a poll under way nearly all the time
            retries={"mode": "standard", "total_max_attempts": 2},
        )
        where = {"region_name": self._region, "endpoint_url": self._endpoint_url}
        return await self._session.create_client("sqs", config=config, **where).__aenter__()

    def place(self) -> str:
        """Where it leads, for people; a secret in the URL is left out."""
        if self._endpoint_url:
            parts = urlsplit(self._endpoint_url)
            return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
        return self._region or "the region of the environment"


class Line:
    """The way to one queue. Opens nothing when made; every error is one of oncebox's own."""

    def __init__(self, clients: Clients, queue: str, *, create: bool) -> None:
        self._clients = clients
        self._queue = queue
        self._create = create
        self._client: Any = None
        self._opening = asyncio.Lock()
        self.name = queue_name(queue)
        self.facts: Facts | None = None

    @property
    def fifo(self) -> bool:
        """FIFO queues, and no others, have names that say so."""
        return self.name.endswith(".fifo")

    async def look(self) -> Facts:
        """The same without making anything, and without staying."""
        other = Line(self._clients, self._queue, create=False)
        try:
            return await other.open()
        finally:
            await other.close()

    async def open(self) -> Facts:
        """Find the queue, or make it. `ConfigError` when it can't be used as it is, `BrokerUnavailable`."""
        async with self._opening:
            if self.facts is not None:
                return self.facts
            try:
                if self._client is None:
                    self._client = await self._clients.enter()
                url = await self._url()
                wanted = ["MessageRetentionPeriod", "MaximumMessageSize", "RedrivePolicy"]
                reply = await self._client.get_queue_attributes(QueueUrl=url, AttributeNames=wanted)
                self.facts = _facts(url, reply.get("Attributes") or {})
            except BaseException as error:
                await self.close()  # nobody closes what could not be opened
                if isinstance(error, _ERRORS):
                    raise self._meant(error, opening=True) from error
                raise
            return self.facts

    async def _url(self) -> str:
        if is_url(self._queue):
            return self._queue
        try:
            reply = await self._client.get_queue_url(QueueName=self.name)
        except boto.ClientError as error:
            if not (self._create and _code(error).endswith(_MISSING)):
                raise
            attributes = {"FifoQueue": "true"} if self.fifo else {}
            reply = await self._client.create_queue(QueueName=self.name, Attributes=attributes)
        return str(reply["QueueUrl"])

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Ask SQS. `BrokerUnavailable` when asking again may help, `BrokerError` when it refuses this."""
        if self._client is None or self.facts is None:
            raise BrokerUnavailable(f"queue {self.name!r} is not open")
        try:
            reply: dict[str, Any] = await getattr(self._client, operation)(
                QueueUrl=self.facts.url, **parameters
            )
        except _ERRORS as error:
            raise self._meant(error, opening=False) from error
        return reply

    async def close(self) -> None:
        """Hang up."""
        client, self._client, self.facts = self._client, None, None
        if client is not None:
            await self._clients.leave()

    def _meant(self, error: Exception, *, opening: bool) -> BrokerError | ConfigError:
        """What an error means, in words that name the queue and the next step, and no secret."""
        wrong = ConfigError if opening else BrokerUnavailable
        if isinstance(error, boto.ClientError):
            code, queue = _code(error), f"queue {self.name!r}"
            if code.endswith(_MISSING):
                kind = " --attributes FifoQueue=true" if self.fifo else ""
                return wrong(
                    f"SQS has no {queue} in {self._clients.place()}; create it with `aws sqs create-queue --queue-name "
                    f"{self.name}{kind}`, or pass create=True"
                )
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500))
            if status in (401, 403) or any(word in code for word in _REFUSED):
                return wrong(
                    f"{queue}: SQS refuses these credentials ({code}); check AWS_ACCESS_KEY_ID, AWS_PROFILE or the "
                    f"role, and that it may do sqs:GetQueueUrl, GetQueueAttributes, and what is to be done here"
                )
            text = f"{queue}: SQS says {code}: {str(error.response['Error'].get('Message', ''))[:200]}"
            if status >= 500 or status == 429 or any(word in code for word in _BUSY):
                return BrokerUnavailable(text)
            return ConfigError(text) if opening else BrokerError(text)
        if isinstance(error, (boto.NoCredentialsError, boto.PartialCredentialsError)):
            return wrong(
                f"queue {self.name!r}: no AWS credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "AWS_PROFILE, or run where there is a role"
            )
        if isinstance(error, boto.NoRegionError):
            return wrong(f"queue {self.name!r}: no AWS region; pass Sqs(region=…) or set AWS_DEFAULT_REGION")
        return BrokerUnavailable(
            f"queue {self.name!r}: can't reach SQS in {self._clients.place()} ({type(error).__name__})"
        )


def is_url(queue: str) -> bool:
    """Whether a queue is named by its URL."""
    return queue.startswith(("http://", "https://"))


def queue_name(queue: str) -> str:
    """The name in a name or URL; `ConfigError` for what can be neither."""
    name = urlsplit(queue).path.rpartition("/")[2] if is_url(queue) else queue
    if not _NAME.fullmatch(name):
        hint = " (of an ARN, take what follows the last colon)" if name.startswith("arn:") else ""
        raise ConfigError(
            f"{name!r} is no queue's name or URL{hint}: letters, digits, - and _, 80 at most; "
            "`.fifo` at the end of a FIFO queue's"
        )
    return name


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", "")).rpartition("#")[2]


def _facts(url: str, attributes: dict[str, str]) -> Facts:
    try:
        redrive = json.loads(attributes.get("RedrivePolicy") or "{}")
        receives_max = int(redrive["maxReceiveCount"])
        dead_letter = str(redrive["deadLetterTargetArn"]).rpartition(":")[2]
    except (ValueError, TypeError, KeyError):
        receives_max, dead_letter = None, None
    return Facts(
        url,
        float(attributes.get("MessageRetentionPeriod", 4 * 86_400)),
        int(attributes.get("MaximumMessageSize", BYTES_MAX_BEFORE)),
        receives_max,
        dead_letter,
    )
