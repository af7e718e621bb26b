"""A connection that is opened by its first user, replaced when it was lost, and closed by its last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import unquote, urlsplit

import aiormq
from aiormq.abc import AbstractChannel
from aiormq.exceptions import (
    AMQPConnectionError,
    AMQPError,
    AuthenticationError,
    ChannelClosed,
    ChannelInvalidStateError,
    ConnectionNotAllowed,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from yarl import URL

from oncebox.brokers.rabbitmq.wire import tolerate_unreadable_properties
from oncebox.errors import BrokerUnavailable, ConfigError

CONNECT_SECONDS = 10.0
CALL_SECONDS = 30.0
CLOSE_SECONDS = 5.0
HEARTBEAT_SECONDS = 10
"""A peer that vanished is noticed after three of these."""

LOST = (AMQPError, ChannelInvalidStateError, ConnectionError, OSError, TimeoutError, RuntimeError)
"""What aiormq raises when a channel or its connection is gone."""


class Link:
    """One connection to RabbitMQ, shared by those who `enter` it. Of one event loop at a time."""

    def __init__(self, url: str, name: str) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port or (5671 if parts.scheme == "amqps" else 5672)
        except ValueError:
            port = 0
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname or not port:
            # The URL may hold a password: it is not quoted.
            raise ConfigError("RabbitMQ needs a URL such as amqp://user:password@host:5672/vhost")
        self._url = URL(url)
        if "heartbeat" not in self._url.query:
            self._url = self._url.update_query(heartbeat=HEARTBEAT_SECONDS)
        self._url = self._url.update_query(name=name)
        self.vhost = unquote(parts.path[1:]) or "/"
        self.user = unquote(parts.username or "guest")
        self.where = f"RabbitMQ at {parts.hostname}:{port}"
        self._connection: aiormq.Connection | None = None
        self._connecting = asyncio.Lock()
        self._users = 0

    def enter(self) -> None:
        """Keep the connection, once there is one, until `leave`."""
        if not self._users:
            self._connecting = asyncio.Lock()
        self._users += 1

    async def leave(self) -> None:
        """Let go; the last one closes it. Never raises for a broker that is gone."""
        self._users -= 1
        if not self._users and self._connection is not None:
            connection, self._connection = self._connection, None
            await closed(connection)

    @property
    def version(self) -> tuple[int, ...]:
        """The broker's, as far as it is known: (3, 13)."""
        said = str(self._connection.server_properties.get("version", "")) if self._connection else ""
        return tuple(int(part) for part in said.split(".")[:2] if part.isdigit())

    async def channel(self, *, confirms: bool = False) -> AbstractChannel:
        """A new channel, on a new connection when the last one was lost.

        `BrokerUnavailable` when the broker can't be reached, `ConfigError` when it lets nobody in.
        """
        async with self._connecting:
            if self._connection is None or not self._connection.is_opened:
                self._connection = await self._connect()
            connection = self._connection
        try:
            async with answered():
                return await connection.channel(publisher_confirms=confirms)
        except LOST as error:
            raise self.unavailable(error) from None

    async def _connect(self) -> aiormq.Connection:
        _be_quiet()
        tolerate_unreadable_properties()
        connection = aiormq.Connection(self._url)
        try:
            async with answered(CONNECT_SECONDS):
                await connection.connect()
        except (ProbableAuthenticationError, AuthenticationError):
            raise ConfigError(
                f"{self.where} refuses user {self.user!r}: check the user and password in the URL"
            ) from None
        except LOST as error:
            # aiormq's errors carry the connection, which carries the password: none of it is passed on.
            no_vhost = isinstance(error, InvalidFrameError) and "Connection.OpenOk" in str(error)
            if no_vhost or isinstance(error, ConnectionNotAllowed):
                raise ConfigError(
                    f"{self.where}: user {self.user!r} may not use the vhost {self.vhost!r}, or there is none"
                ) from None
            raise self.unavailable(error) from None
        return connection

    def unavailable(self, error: BaseException | None = None) -> BrokerUnavailable:
        """The error for whoever waits: where, and why in a few words."""
        return BrokerUnavailable(f"{self.where}: {reason(error)}")


@asynccontextmanager
async def answered(seconds: float = CALL_SECONDS) -> AsyncIterator[None]:
    """A call of aiormq, `seconds` at most. Raises one of `LOST` when nobody answers any more.

    aiormq rejects what waits on a lost connection with CancelledError. Taken for what it says, it would end
    our caller's task for good, though nobody has asked it to end.
    """
    task = asyncio.current_task()
    asked = task.cancelling() if task is not None else 0
    try:
        async with asyncio.timeout(seconds):
            yield
    except asyncio.CancelledError:
        if task is None or task.cancelling() > asked:
            raise
        raise ConnectionError("aiormq gave the call up") from None


def reason(error: BaseException | None) -> str:
    """Why, without anything that may hold a secret or a payload."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, AMQPConnectionError):
        cause = error.__cause__
        return f"can't be reached ({cause.strerror})" if isinstance(cause, OSError) and cause.strerror else (
            "the connection was lost"
        )  # fmt: skip
    if isinstance(error, ChannelClosed) and error.args and isinstance(error.args[-1], str):
        return error.args[-1]
    return "the connection was lost"


async def closed(thing: AbstractChannel | aiormq.Connection) -> None:
    """Close a channel or connection, however far gone it is."""
    try:
        async with answered(CLOSE_SECONDS):
            await thing.close()
    except LOST:
        pass


def _be_quiet() -> None:
    """All that aiormq logs about losses reaches its caller as an error, which the runtime reports in one line."""
    log = logging.getLogger("aiormq")
    if log.level == logging.NOTSET:
        log.setLevel(logging.CRITICAL)
