"""SQS as moto plays it, on a bench: one server per process, one queue per bench, a clock that can be moved."""

import asyncio
import atexit
import functools
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

from aiobotocore.session import get_session  # type: ignore[import-untyped]

from oncebox.brokers.contract import Delivery, Source
from oncebox.brokers.sqs import Sqs, SqsSink, wire
from oncebox.brokers.sqs.sink import BATCH_MAX
from oncebox.message import Message
from tests.brokers.suite import Bench, Features
from tests.conftest import missing
from tests.servers.moto import REGION, Moto
from tests.servers.process import Unavailable

WAIT_SECONDS = 1
_names = itertools.count(1)


@functools.cache
def moto() -> Moto:
    """This process's server, started when it is first needed."""
    try:
        server = Moto()
    except Unavailable as error:
        missing(error)
    atexit.register(server.close)
    return server.start()


@functools.cache
def session() -> Any:
    """Credentials that belong to nobody."""
    found = get_session()
    found.set_credentials("test", "test")
    return found


@asynccontextmanager
async def client(service: str = "sqs") -> AsyncIterator[Any]:
    """A bare client, to see what oncebox does and to do what it does not."""
    async with session().create_client(service, region_name=REGION, endpoint_url=moto().url) as bare:
        yield bare


def new_name(suffix: str = "") -> str:
    """A queue's name that nobody has had."""
    return f"payments-{next(_names)}{suffix}"


class MovedClock:
    """The machine's clock, some seconds ahead."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def watch(self, jumped: Callable[[], None]) -> Callable[[], None]:
        raise NotImplementedError


class SqsBench(Bench):
    """A standard queue."""

    features = Features(releases_uncounted=False, body_bytes=700_000)
    suffix = ""

    def __init__(self) -> None:
        super().__init__()
        self.name = new_name(self.suffix)
        self.clock = MovedClock()

    async def __aenter__(self) -> Self:
        self.sqs = Sqs(region=REGION, endpoint_url=moto().url, session=session(), clock=self.clock)
        self.sink: SqsSink = self.sqs.sink(self.name, create=True)
        await self.sink.open()
        self.stack.push_async_callback(self.sink.close)
        return self

    def make_source(self) -> Source:
        return self.sqs.queue(self.name, wait_seconds=WAIT_SECONDS)

    async def publish(self, *messages: Message | Delivery, duplicates: int = 0) -> None:
        for message in messages:
            if isinstance(message, Delivery):
                await self.put(nameless(message))
        whole = [message for message in messages if isinstance(message, Message)]
        for start in [*range(0, len(whole), BATCH_MAX)] * (1 + duplicates):
            # Batch by batch: the sink sends several at once, and there is no order between them.
            batch = whole[start : start + BATCH_MAX]
            assert await self.sink.publish(batch) == [None] * len(batch)

    async def put(self, parameters: dict[str, Any]) -> None:
        """Send just this."""
        async with client() as bare:
            url = (await bare.get_queue_url(QueueName=self.name))["QueueUrl"]
            await bare.send_message(QueueUrl=url, **parameters)

    async def pass_seconds(self, seconds: float) -> None:
        # Ours first: an answer must not look timely here and late there.
        self.clock.ahead += seconds
        moto().advance(seconds)

    def now(self) -> float:
        return self.clock.monotonic()

    async def heard(self, source: Source) -> None:
        await asyncio.sleep(0)

    async def lose(self, source: Source) -> None:
        # SQS knows no connections: that somebody is gone shows when the visibility ends.
        await self.pass_seconds(self.visibility_seconds + 1)


class FifoBench(SqsBench):
    """A FIFO queue; it drops a second sending of the same id by itself."""

    features = Features(releases_uncounted=False, duplicates=False, body_bytes=700_000)
    suffix = ".fifo"


def nameless(message: Delivery) -> dict[str, Any]:
    """What sends a message that has no id."""
    whole = Message(id="-", payload=message.body, headers=message.headers)
    parameters, _ = wire.entry(whole, fifo=False)
    del parameters["MessageAttributes"]["message-id"]
    return parameters
