"""A provider that is not there: an httpx transport that answers by itself and records every request."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import msgspec

from oncebox.testing.wiretap import noticed

__all__ = ["HttpCall", "HttpRecorder"]

_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))


class HttpCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes

    @property
    def idempotency_key(self) -> str | None:
        """What tells the provider that it is the same call."""
        return self.headers.get("idempotency-key")

    @property
    def is_safe(self) -> bool:
        """It only asks."""
        return self.method in _SAFE

    def __str__(self) -> str:
        return f"{self.method} {self.url}"


class HttpRecorder(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """For `httpx.Client(transport=…)` and `AsyncClient`; inside an effect transport it sees the key, too.

    `answer` makes the response to a request, or raises; by default it is 200 with an empty object.
    """

    def __init__(self, answer: Callable[[httpx.Request], httpx.Response] | None = None) -> None:
        self.calls: list[HttpCall] = []
        self._answer = answer or (lambda request: httpx.Response(200, json={}))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Record and answer."""
        request.read()
        return self._record(request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The same for an async client."""
        await request.aread()
        return self._record(request)

    def _record(self, request: httpx.Request) -> httpx.Response:
        call = HttpCall(
            method=request.method, url=str(request.url), headers=dict(request.headers), body=request.content
        )
        self.calls.append(call)
        if not call.is_safe:
            noticed(f"requests {call.method}", request.url.host)
        return self._answer(request)

    def close(self) -> None:
        """Nothing is open."""

    async def aclose(self) -> None:
        """Nothing is open."""

    def __repr__(self) -> str:
        return f"<HttpRecorder {len(self.calls)} calls>"
