"""httpx for effects: every call carries its idempotency key, and what is not known is said to be unknown.

One client is shared by all calls, and each request names the effect's call:

    http = httpx.Client(base_url="https://provider.example", transport=EffectTransport())
    http.post("/charges", json=charge, extensions=named(call))
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import httpx

from oncebox.core.effects import Call
from oncebox.core.unknown import is_unknown
from oncebox.errors import UnknownEffect, UsageError

__all__ = ["AsyncEffectTransport", "EffectTransport", "named"]

HEADER = "Idempotency-Key"
_EXTENSION = "oncebox.idempotency_key"
_REPEATABLE = frozenset(("GET", "HEAD", "OPTIONS", "PUT", "DELETE"))
"""Doing these twice is doing them once, by their own definition."""
UNKNOWN_STATUSES = frozenset((408, 500, 502, 504))
"""Answers that leave open whether the provider acted."""


def named(call: Call, part: str = "") -> dict[str, Any]:
    """The extensions of a request of this call. An effect that posts twice names the `part` of each, so
    that the two keys differ and stay what they are."""
    return {_EXTENSION: f"{call.idempotency_key}-{part}" if part else call.idempotency_key}


class EffectTransport(httpx.BaseTransport):
    """Adds the key, and raises `UnknownEffect` for a timeout, a lost connection, and answers that don't say.

    A connection that was never made stays the client's own error: that call did not happen. A POST or
    PATCH that names no call is a `UsageError`, because a retry of it could not be told from a new one.
    """

    def __init__(
        self,
        transport: httpx.BaseTransport | None = None,
        *,
        header: str = HEADER,
        unknown_statuses: Collection[int] = UNKNOWN_STATUSES,
    ) -> None:
        self._transport = transport or httpx.HTTPTransport()
        self._header = header
        self._unknown_statuses = frozenset(unknown_statuses)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send it, with its key."""
        is_call = _put_key(request, self._header)
        try:
            response = self._transport.handle_request(request)
        except Exception as error:
            _raise_unknown(request, error, is_call)
            raise
        if is_call and response.status_code in self._unknown_statuses:
            response.close()
            raise UnknownEffect(_said(request, f"it answered {response.status_code}"))
        return response

    def close(self) -> None:
        """Let the connections go."""
        self._transport.close()


class AsyncEffectTransport(httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        header: str = HEADER,
        unknown_statuses: Collection[int] = UNKNOWN_STATUSES,
    ) -> None:
        self._transport = transport or httpx.AsyncHTTPTransport()
        self._header = header
        self._unknown_statuses = frozenset(unknown_statuses)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send it, with its key."""
        is_call = _put_key(request, self._header)
        try:
            response = await self._transport.handle_async_request(request)
        except Exception as error:
            _raise_unknown(request, error, is_call)
            raise
        if is_call and response.status_code in self._unknown_statuses:
            await response.aclose()
            raise UnknownEffect(_said(request, f"it answered {response.status_code}"))
        return response

    async def aclose(self) -> None:
        """Let the connections go."""
        await self._transport.aclose()


def _put_key(request: httpx.Request, header: str) -> bool:
    """Whether this is an effect's call, which now carries its key."""
    key = request.extensions.get(_EXTENSION)
    if key is not None:
        request.headers[header] = key
        return True
    if request.method not in _REPEATABLE and header not in request.headers:
        raise UsageError(
            f"{request.method} {request.url.host}{request.url.path} names no call: pass extensions=named(call)"
        )
    return header in request.headers


def _raise_unknown(request: httpx.Request, error: Exception, is_call: bool) -> None:
    if is_call and is_unknown(error):
        raise UnknownEffect(_said(request, type(error).__name__)) from error


def _said(request: httpx.Request, what: str) -> str:
    # No query string: providers put tokens there.
    return f"{request.method} {request.url.host}{request.url.path} may have happened: {what}"
