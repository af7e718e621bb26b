"""What goes over the wire between a served `Memory` and its `RemoteMemory`: length-prefixed msgpack.

One connection is one subscription (or one control line, which publishes and asks for figures). The
first frame carries the secret; after it, requests are answered by number, in any order. Answers to
deliveries have no reply: one that is lost with its connection costs a redelivery.
"""

from __future__ import annotations

import asyncio

import msgspec

from oncebox.brokers.contract import Delivery
from oncebox.brokers.stored import MESSAGE_BYTES_MAX, QueueStats, Stored
from oncebox.errors import BrokerError, BrokerUnavailable, ConfigError, MessageError, QueueFull, TooLarge

BATCH_BYTES_MAX = MESSAGE_BYTES_MAX
"""Messages in one frame, by size; one message alone may reach this."""
FRAME_BYTES_MAX = 2 * BATCH_BYTES_MAX
HELLO_BYTES_MAX = 4096
"""Until the secret is known, nobody can make the server hold more than this."""
STREAM_BYTES = 1024 * 1024
"""How much a stream buffers before it stops reading: large bodies come in few pieces."""
_PREFIX_BYTES = 4


class Frame(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Base of all frames."""


class Hello(Frame, frozen=True):
    """The client's first frame. Without a queue, the connection is a control line."""

    secret: str
    queue: str | None = None
    prefetch: int | None = None


class Receive(Frame, frozen=True):
    """Reply: `Delivered`."""

    request: int
    limit: int


class Cancel(Frame, frozen=True):
    """The reply to that `Receive` is no longer wanted. What was taken for it is released by the client."""

    request: int


class Ack(Frame, frozen=True):
    """No reply."""

    tags: list[int]


class Nack(Frame, frozen=True):
    """No reply."""

    tag: int
    delay_seconds: float


class Release(Frame, frozen=True):
    """No reply."""

    tags: list[int]


class Extend(Frame, frozen=True):
    """No reply."""

    tags: list[int]
    seconds: float


class Sync(Frame, frozen=True):
    """Everything before this has been heard. Reply: `Done`."""

    request: int


class Bye(Frame, frozen=True):
    """Release what is not answered and end. Reply: `Done`, and the connection closes."""

    request: int


class Put(Frame, frozen=True):
    """Put into a queue. Reply: `Done`."""

    request: int
    queue: str
    messages: list[Stored]
    duplicates: int
    delay_seconds: float


class Route(Frame, frozen=True):
    """Publish to a topic. Reply: `Done`, with an error or None per message."""

    request: int
    topic: str
    messages: list[Stored]


class Ask(Frame, frozen=True):
    """What the queues hold. Reply: `Figures`."""

    request: int


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """An error as it travels: the class by name, and its text."""

    error: str
    text: str


class Welcome(Frame, frozen=True):
    """The secret was right, and the queue is there."""

    retention_seconds: float | None = None
    pins_keys: bool = False


class Delivered(Frame, frozen=True):
    """What a `Receive` took."""

    request: int
    deliveries: list[Delivery]


class Done(Frame, frozen=True):
    """The request was carried out."""

    request: int
    failures: list[Failure | None] = []


class Figures(Frame, frozen=True):
    """Every queue's figures."""

    request: int
    queues: dict[str, QueueStats]


class Failed(Frame, frozen=True):
    """The request (0: the connection itself) was refused."""

    request: int
    failure: Failure


Answer = Ack | Nack | Release | Extend
Request = Receive | Sync | Bye | Put | Route | Ask
Reply = Delivered | Done | Figures | Failed

_encoder = msgspec.msgpack.Encoder()
_hellos = msgspec.msgpack.Decoder(Hello)
_requests: msgspec.msgpack.Decoder[Request | Answer | Cancel] = msgspec.msgpack.Decoder(
    Receive | Cancel | Ack | Nack | Release | Extend | Sync | Bye | Put | Route | Ask
)
_replies: msgspec.msgpack.Decoder[Reply | Welcome] = msgspec.msgpack.Decoder(
    Welcome | Delivered | Done | Figures | Failed
)

_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (BrokerError, BrokerUnavailable, ConfigError, MessageError, QueueFull, TooLarge, ValueError)
}


def failure(error: BaseException) -> Failure:
    """The error as it travels."""
    return Failure(type(error).__name__, str(error))


def raised(failed: Failure) -> Exception:
    """The error as it is raised on the other side; unknown classes become `BrokerError`."""
    return _ERRORS.get(failed.error, BrokerError)(failed.text)


def encode(frame: Frame) -> bytes:
    """The frame with its length before it; `TooLarge` beyond what the other side takes."""
    body = _encoder.encode(frame)
    if len(body) > FRAME_BYTES_MAX:
        raise TooLarge(
            f"a frame of {len(body):,} bytes; the limit is {FRAME_BYTES_MAX:,}: send fewer at once"
        )
    return len(body).to_bytes(_PREFIX_BYTES, "big") + body


async def read_hello(reader: asyncio.StreamReader) -> Hello:
    """The client's first frame; errors as `read_request`."""
    return _hellos.decode(await _read(reader, HELLO_BYTES_MAX))


async def read_request(reader: asyncio.StreamReader) -> Request | Answer | Cancel:
    """The client's next frame.

    Raises `EOFError` or `OSError` when the connection is gone, and `ValueError` for what is no frame.
    """
    return _requests.decode(await _read(reader, FRAME_BYTES_MAX))


async def read_reply(reader: asyncio.StreamReader) -> Reply | Welcome:
    """The server's next frame; errors as `read_request`."""
    return _replies.decode(await _read(reader, FRAME_BYTES_MAX))


async def _read(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    size = int.from_bytes(await reader.readexactly(_PREFIX_BYTES), "big")
    if size > bytes_max:
        raise ValueError(f"a frame of {size:,} bytes; the limit is {bytes_max:,}")
    return await reader.readexactly(size)
