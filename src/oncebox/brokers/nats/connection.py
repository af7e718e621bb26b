"""One NATS connection, made when it is first needed and again after it was lost.

nats-py's own reconnecting is off: it would hide a loss from those who wait for a message, and keep what was
published meanwhile in a buffer that nobody confirms. Who needs the connection next makes a new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from oncebox.brokers.nats.headers import LINE, Raw
from oncebox.errors import BrokerUnavailable, ConfigError

log = logging.getLogger("oncebox")

CONNECT_SECONDS = 5
REPLY_SECONDS = 10.0
"""How long the server may take over one request."""
PING_SECONDS = 20

_OURS = frozenset(
    ("servers", "allow_reconnect", "max_reconnect_attempts", "reconnect_time_wait", "error_cb", "closed_cb")
)


class Link(Client):
    """A nats-py client that keeps header blocks as they came, and tells whoever asked when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.when_closed: set[Callable[[], None]] = set()
        self.complaint = ""
        """What the server last complained about, such as a permission that is missing."""

    async def _process_headers(self, headers: Any) -> dict[str, str] | None:
        if not headers:
            return None
        # Without a status in its first line it is a message's block, which only `incoming` reads.
        raw = Raw() if headers.startswith(LINE) else Raw(await super()._process_headers(headers) or {})
        raw.block = headers
        return raw

    async def on_error(self, error: Exception) -> None:
        """Errors beside any request. Nothing is shown here: whoever waits is told by its own error."""
        self.complaint = reason(error)
        log.debug("nats: %s", self.complaint)

    async def on_closed(self) -> None:
        """The connection ended, by us or not."""
        for callback in list(self.when_closed):
            callback()


class Connection:
    """What sources and sinks of one `Nats` share. For one event loop at a time."""

    def __init__(self, servers: Sequence[str], domain: str | None, options: Mapping[str, Any]) -> None:
        if wrong := sorted(_OURS & options.keys()):
            raise ConfigError(f"Nats({wrong[0]}=…): oncebox sets this itself; leave it out")
        self.where = ", ".join(map(_shown, servers))
        self.prefix = f"$JS.{domain}.API" if domain else "$JS.API"
        self._servers = list(servers)
        self._domain = domain
        self._options = options
        self._link: Link | None = None
        self._users: set[object] = set()
        self._dialling = asyncio.Lock()

    async def join(self, user: object) -> Link:
        """The live connection, kept until this user has left too."""
        if not self._users:
            self._dialling = asyncio.Lock()  # perhaps in another event loop than last time
        self._users.add(user)
        try:
            return await self.link()
        except BaseException:
            self._users.discard(user)
            raise

    async def leave(self, user: object) -> None:
        """The last one to leave closes the connection."""
        self._users.discard(user)
        link = self._link
        if not self._users and link is not None:
            self._link = None
            await _closed(link)

    @property
    def live(self) -> Link | None:
        """The connection, if there is one now."""
        return self._link if self._link is not None and self._link.is_connected else None

    async def link(self) -> Link:
        """The live connection; connects if there is none.

        Raises `BrokerUnavailable`, and `ConfigError` when the server does not let us in.
        """
        async with self._dialling:
            if self.live is None:
                if self._link is not None:
                    await _closed(self._link)
                self._link = await self._dial()
            assert self._link is not None
            return self._link

    async def drop(self, link: Link) -> None:
        """Give up a connection that no longer answers."""
        if self._link is link:
            self._link = None
        await _closed(link)

    def jetstream(self, link: Link) -> JetStreamContext:
        """For questions about streams and consumers."""
        return link.jetstream(domain=self._domain, timeout=REPLY_SECONDS)

    async def _dial(self) -> Link:
        link = Link()
        try:
            await link.connect(
                self._servers,
                allow_reconnect=False,
                # The client's name for how often it knocks at each server before it gives up.
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=link.on_error,
                closed_cb=link.on_closed,
                **{
                    "name": "oncebox",
                    "connect_timeout": CONNECT_SECONDS,
                    "ping_interval": PING_SECONDS,
                    **self._options,
                },
            )
        except BaseException as error:
            await _closed(link)
            if not isinstance(error, Exception):
                raise
            text = reason(error)
            if "authorization" in text.lower() or "authentication" in text.lower():
                raise ConfigError(
                    f"{self.where} refused the credentials; put them into the URL (nats://user:password@host) "
                    "or pass user_credentials=, token= or nkeys_seed= to Nats"
                ) from error
            detail = link.complaint if isinstance(error, nats.errors.NoServersError) else text
            raise BrokerUnavailable(f"{self.where} can't be reached: {detail}") from error
        return link


def _shown(url: str) -> str:
    """The server's address without user and password, for error texts."""
    if "://" not in url:
        url = f"nats://{url}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError("not a NATS address; write nats://host:4222") from error
    if parts.scheme not in ("nats", "tls", "ws", "wss") or not parts.hostname:
        raise ConfigError("not a NATS address; write nats://host:4222")
    return f"{parts.scheme}://{parts.hostname}:{port or 4222}"


def reason(error: BaseException) -> str:
    """An error's text, or its name where it has none."""
    return str(error) or type(error).__name__


async def _closed(link: Link) -> None:
    """Close it, whatever state it is in."""
    with suppress(Exception):
        async with asyncio.timeout(CONNECT_SECONDS):
            await link.close()
