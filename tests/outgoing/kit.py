"""A sink that can refuse, raise, hang and answer short, and relays that take one turn at a time."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any
from urllib.parse import urlsplit

import psycopg

from oncebox import Message, Outbox
from oncebox.brokers.contract import Sink
from oncebox.core.outgoing import SLOTS
from oncebox.policy import Backoff
from oncebox.runtime.relay import Bell, Relay, routes
from tests.core.kit import Shop
from tests.waiting import eventually_async

Answer = BaseException | None
AT_ONCE = Backoff(attempts=3, base_seconds=0.0, max_seconds=0.0)
"""Refused messages are due again at once."""
LATER = Backoff(attempts=20, base_seconds=3600.0, max_seconds=3600.0)


class ScriptedSink:
    """Keeps what it took, in order. `judge` says what becomes of a message; by default it is taken."""

    def __init__(self, name: str = "scripted") -> None:
        self.name = name
        self.taken: list[Message] = []
        """What a broker would hold: confirmed or not, it is there."""
        self.asked: list[list[str]] = []
        """The ids of every call."""
        self.judge: Callable[[Message], Answer] = lambda message: None
        self.raises: BaseException | None = None
        self.hangs = False
        self.answers_short = False

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def publish(self, messages: Sequence[Message]) -> list[Answer]:
        """As told."""
        self.asked.append([message.id for message in messages])
        if self.raises is not None:
            raise self.raises
        if self.hangs:
            await asyncio.Event().wait()
        answers = [self.judge(message) for message in messages]
        self.taken += [message for message, answer in zip(messages, answers, strict=True) if answer is None]
        return answers[:-1] if self.answers_short else answers

    @property
    def ids(self) -> list[str]:
        """The ids of what it took, in order."""
        return [message.id for message in self.taken]


@asynccontextmanager
async def relay(
    shop: Shop,
    sink: Sink | dict[str, Sink],
    name: str = "relay-1",
    *,
    retry: Backoff = AT_ONCE,
    lease_seconds: float = 10.0,
    keep_seconds: float = 0.0,
) -> AsyncIterator[Relay]:
    """A relay that does nothing by itself: `await it.turn()`."""
    made = Relay(
        shop.app.database, routes(sink), name, Bell(), lease_seconds=lease_seconds, keep_seconds=keep_seconds
    )
    made.relaying.retry = retry
    made.pipes.pause = lambda losses: 0.0
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def put_slots_back(shop: Shop) -> None:
    """A shop's database is emptied between tests; slots are part of the schema."""
    for slot in range(SLOTS):
        shop.rows(f"INSERT INTO {shop.table('slot')} (slot) VALUES ({slot}) ON CONFLICT DO NOTHING")


def outbox_rows(shop: Shop, columns: str = "id") -> list[tuple[Any, ...]]:
    """What is committed, in the order the relay sees it."""
    return shop.rows(f"SELECT {columns} FROM {shop.table('outbox')} ORDER BY seq")


def outbox_ids(shop: Shop) -> list[str]:
    return [row[0] for row in outbox_rows(shop)]


def put(shop: Shop, *ids: str, **words: Any) -> None:
    """Publish from outside, in a transaction of its own, on the engine's plainest handle."""
    outbox = Outbox("shop", notify=False)
    kind = words.pop("type", "paid")
    if shop.kind.engine == "sqlite":
        with closing(sqlite3.connect(urlsplit(shop._url).path.removeprefix("/"))) as lite:
            for id_ in ids:
                outbox.publish(lite, kind, {"n": id_}, id=id_, **words)
            lite.commit()
        return
    with psycopg.connect(shop._url) as connection:
        for id_ in ids:
            outbox.publish(connection, kind, {"n": id_}, id=id_, **words)


async def until(step: Callable[[], Awaitable[object]], seconds: float = 30) -> None:
    """Take this step again and again until it says yes."""
    probe: Any = step
    await eventually_async(probe, seconds)
