"""A request as ASGI gives it: where it goes, its headers within bounds, and its body up to a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from oncebox.message import HEADER_BYTES_MAX, HEADERS_MAX, Headers
from oncebox.runtime.http import Receive, Scope, Send
from oncebox.webhooks.answers import Answer, Refusal

BODY_SECONDS = 30.0
"""A body that takes longer to arrive is not waited for."""
CLOSE = ("connection", "close")
"""Sent where the body was not read to its end: what is left of it must not be taken for a request."""

_NOT_KEPT = frozenset({
    "accept", "accept-encoding", "authorization", "connection", "content-length", "cookie", "expect", "host",
    "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers that are about the connection, or are secrets."""


class Gone(Exception):
    """The sender closed the connection before its request was complete."""


def route(scope: Scope) -> str:
    """The path below where this application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):
        return path[len(root) :]
    return path


def read_headers(scope: Scope) -> Headers:
    """Names in lower case, values as bytes. Refused when there are too many or they are too long."""
    raw: Collection[tuple[bytes, bytes]] = scope["headers"]
    if len(raw) > HEADERS_MAX or sum(len(name) + len(value) for name, value in raw) > HEADER_BYTES_MAX:
        raise Refusal(431, "too many headers, or too long ones", CLOSE)
    # An underscore is a look-alike: some proxies take it for the hyphen, and let it pass unseen.
    return tuple((name.decode("latin-1").lower(), value) for name, value in raw if b"_" not in name)


def only(headers: Headers, name: str) -> bytes | None:
    """The value of a header that must not be repeated; None where it is missing."""
    found = [value for key, value in headers if key == name]
    if len(found) > 1:
        # Whoever stands before us may have looked at another one of them than we would.
        raise Refusal(400, f"the header {name} is there {len(found)} times", CLOSE)
    return found[0] if found else None


def kept(headers: Headers, secret: Collection[str]) -> Headers:
    """Headers that may be stored with the message."""
    return tuple(pair for pair in headers if pair[0] not in _NOT_KEPT and pair[0] not in secret)


def needed(headers: Headers, names: tuple[str, ...], challenge: str) -> Mapping[str, bytes]:
    """The headers that a check reads, each exactly once; else 401, before the body is read."""
    found: dict[str, bytes] = {}
    for name in names:
        values = [value for key, value in headers if key == name]
        if len(values) != 1:
            raise Refusal(401, "not verified", ("www-authenticate", challenge), CLOSE)
        found[name] = values[0]
    return found


async def read_body(headers: Headers, receive: Receive, bytes_max: int) -> bytes:
    """The raw body. 413 as soon as it is known to be over the limit; what is left is not read."""
    declared = only(headers, "content-length")
    if declared is not None and (not declared.isdigit() or len(declared) > 18):
        raise Refusal(400, "content-length is not a number", CLOSE)
    if declared is not None and int(declared) > bytes_max:
        raise _too_long(bytes_max)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise Gone
                part: bytes = event.get("body", b"")
                size += len(part)
                if size > bytes_max:
                    raise _too_long(bytes_max)
                parts.append(part)
                if not event.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {BODY_SECONDS:g} s", CLOSE) from None


def _too_long(bytes_max: int) -> Refusal:
    return Refusal(413, f"the body is over the limit of {bytes_max:,} bytes", CLOSE)


async def respond(send: Send, answer: Answer) -> None:
    """Send a whole response."""
    start: dict[str, Any] = {
        "type": "http.response.start",
        "status": answer.status,
        "headers": answer.headers,
    }
    await send(start)
    await send({"type": "http.response.body", "body": answer.body})
