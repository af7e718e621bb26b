"""Clients of one Redis server, and its errors as ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import Redis as Client
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from oncebox.errors import BrokerUnavailable, ConfigError

REPLY_SECONDS = 10.0
"""How long the server may take over one question or answer."""
TRANSFER_SECONDS = 30.0
"""How long entries may take on their way."""
CONNECT_SECONDS = 5.0

_OURS = frozenset(
    ("decode_responses", "protocol", "retry", "retry_on_error", "single_connection_client", "socket_timeout")
)


class Server:
    """Where the server is and how to log in. Opens nothing."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        if wrong := sorted(_OURS & options.keys()):
            raise ConfigError(f"Redis({wrong[0]}=…): oncebox sets this itself; leave it out")
        self.where = _shown(url)
        self._url = url
        self._options = options

    def client(self, *, again: bool, single: bool = False) -> Client:
        """A new client. `again`: a connection that was lost while idle is made anew once, silently.

        What is sent twice that way must do no harm. `single`: one connection and no more.
        """
        try:
            client = Client.from_url(
                self._url,
                single_connection_client=single,
                **{
                    # Its own timeout goes through asyncio.wait_for, which on Python 3.11 can swallow a
                    # cancellation; `asking` has one that does not.
                    "socket_timeout": None,
                    "socket_connect_timeout": CONNECT_SECONDS,
                    "socket_keepalive": True,
                    **self._options,
                    "protocol": 2,
                    "decode_responses": False,
                    "retry": Retry(NoBackoff(), 1 if again else 0, (exceptions.ConnectionError,)),
                },
            )
        except ValueError as error:
            raise ConfigError(f"{self.where}: {error}") from error
        # Repeated fields would be lost in a dict.
        client.set_response_callback("XREADGROUP", lambda response, **_: response)
        return client

    @asynccontextmanager
    async def asking(self, seconds: float = REPLY_SECONDS) -> AsyncIterator[None]:
        """Errors as ours: `BrokerUnavailable`, also when it takes longer than `seconds`, or `ConfigError`
        when the server does not let us in."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
            raise ConfigError(
                f"{self.where} refused the credentials; put them into the URL: redis://user:password@host:6379/0"
            ) from error
        except exceptions.NoPermissionError as error:
            raise ConfigError(f"{self.where}: the user may not do this: {error}") from error
        except TimeoutError as error:
            raise BrokerUnavailable(f"{self.where} did not answer in {seconds:g} s") from error
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            raise BrokerUnavailable(f"{self.where} can't be reached: {error}") from error
        except exceptions.RedisError as error:
            raise BrokerUnavailable(f"{self.where}: {error}") from error


def _shown(url: str) -> str:
    """The server's address without user, password and query, for error texts."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError("not a Redis address; write redis://host:6379/0") from error
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ConfigError("not a Redis address; write redis://host:6379/0, rediss://… or unix://…")
    if "decode_responses" in parts.query or "protocol" in parts.query:
        raise ConfigError("leave decode_responses and protocol out of the URL: bodies are bytes")
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    return f"{parts.scheme}://{parts.hostname or 'localhost'}:{port or 6379}"
