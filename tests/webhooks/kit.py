"""Senders that sign as the real ones do, and a real server on a loopback port.

Signatures are made here from each scheme's own description, not by the code under test.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx

from oncebox.errors import DatabaseUnavailable
from oncebox.runtime.http import Asgi, listen, place_of, serving
from tests.core.kit import Shop

SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()
OLD_SECRET = "whsec_" + base64.b64encode(b"o" * 24).decode()
PLAIN = "a plain secret"
BODY = json.dumps({"id": "evt-1", "type": "payment", "amount": 100}).encode()

Headers = dict[str, str]


def _mac(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()


def signed_standard(
    body: bytes = BODY, *, name: str = "msg-1", at: float | None = None, secret: str = SECRET
) -> Headers:
    moment = str(int(time.time() if at is None else at))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signature = base64.b64encode(_mac(key, f"{name}.{moment}.".encode() + body)).decode()
    return {
        "webhook-id": name,
        "webhook-timestamp": moment,
        "webhook-signature": f"v1,{signature}",
        "content-type": "application/json",
    }


def signed_stripe(body: bytes = BODY, *, at: float | None = None, secret: str = PLAIN) -> Headers:
    moment = str(int(time.time() if at is None else at))
    signature = _mac(secret.encode(), f"{moment}.".encode() + body).hex()
    return {"stripe-signature": f"t={moment},v1={signature},v0=00", "content-type": "application/json"}


def signed_github(
    body: bytes = BODY, *, name: str = "guid-1", event: str = "push", secret: str = PLAIN
) -> Headers:
    return {
        "x-hub-signature-256": f"sha256={_mac(secret.encode(), body).hex()}",
        "x-github-delivery": name,
        "x-github-event": event,
        "content-type": "application/json",
    }


def bearing(secret: str = PLAIN, **headers: str) -> Headers:
    return {"authorization": f"Bearer {secret}", **{n.replace("_", "-"): v for n, v in headers.items()}}


def cloudevent(name: str = "ce-1", **words: Any) -> dict[str, Any]:
    event = {"specversion": "1.0", "id": name, "source": "/shop", "type": "payment", "data": {"amount": 5}}
    return {**event, **words}


@asynccontextmanager
async def served(app: Asgi) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a real server that serves `app` on a loopback port of its own."""
    listening = listen("127.0.0.1:0")
    async with (
        serving(app, listening, drain_seconds=10),
        httpx.AsyncClient(base_url=place_of(listening), timeout=30) as client,
    ):
        yield client


async def raw(client: httpx.AsyncClient, request: bytes, *, end: bool = False) -> bytes:
    """Send bytes that no decent client would, and return what comes back until the server closes."""
    url = client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        writer.write(request)
        if end:
            writer.write_eof()
        async with asyncio.timeout(20):
            with suppress(ConnectionResetError):  # it may close while we still send
                return await reader.read()
        return b""
    finally:
        writer.close()


def as_bytes(headers: Headers) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()


async def handled(shop: Shop) -> None:
    """In stored mode, let a worker have its turns."""
    if shop.mode == "stored":
        await shop.work_off(shop.app.consumers["billing"])


async def handled_after_an_outage(shop: Shop) -> None:
    """The same, on connections of which some were cut and do not know it yet."""
    for _ in range(10):
        with suppress(DatabaseUnavailable):
            return await handled(shop)
    raise AssertionError("the database stays away")
