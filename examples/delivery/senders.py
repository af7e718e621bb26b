"""Scanners and handhelds: they send until they are sure, and sometimes once more."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from types import TracebackType

import httpx
import msgspec

from examples.delivery.parts import SCANNERS, Broker, Scan
from oncebox import Message

AT_ONCE = 8
PAUSE_SECONDS = 0.1
AGAIN = 0.2
"""Scans that are sent a second time, by either way."""


class Senders:
    """Send each scan by webhook or by broker, until it is taken."""

    def __init__(self, broker: Broker, hook: str, token: str, chance: random.Random) -> None:
        self.sent = 0
        """Deliveries that were taken: more than there are scans."""
        self.done = False
        self.most: float = math.inf
        """So many scans may be sent by now."""
        self._sink = broker.to("scans")
        self._hook = hook
        self._token = token
        self._chance = random.Random(chance.random())
        self._http = httpx.AsyncClient(timeout=10)

    async def __aenter__(self) -> Senders:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()
        await self._sink.close()

    async def send(self, scans: Sequence[Scan]) -> None:
        """All of them, a few at a time."""
        await self._open()
        places = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, scan: Scan, by_hook: bool) -> None:
            async with places:
                while number >= self.most:  # noqa: ASYNC110 - told by nobody, and looked at by eight at most
                    await asyncio.sleep(PAUSE_SECONDS)
                await (self._post(scan) if by_hook else self._publish(scan))
                self.sent += 1

        async with asyncio.TaskGroup() as group:
            for number, scan in enumerate(scans):
                group.create_task(one(number, scan, self._chance.random() < 0.5))
                if self._chance.random() < AGAIN:
                    group.create_task(one(number, scan, self._chance.random() < 0.5))
        self.done = True

    async def _open(self) -> None:
        while True:
            try:
                return await self._sink.open()
            except Exception:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _post(self, scan: Scan) -> None:
        """A CloudEvent in headers, so that it is the same message as the one that comes by the broker."""
        headers = {
            "authorization": f"Bearer {self._token}",
            "content-type": "application/json",
            "ce-specversion": "1.0",
            "ce-id": scan.scan,
            "ce-source": SCANNERS,
            "ce-type": "parcel.scanned",
        }
        while True:
            try:
                answer = await self._http.post(self._hook, content=msgspec.json.encode(scan), headers=headers)
                if answer.is_success:
                    return
                if answer.status_code < 500 and answer.status_code != 429:
                    raise RuntimeError(f"the webhook was refused: {answer.status_code} {answer.text}")
            except httpx.TransportError:
                pass  # nobody there, or it died with the request in hand: sent again
            await asyncio.sleep(PAUSE_SECONDS)

    async def _publish(self, scan: Scan) -> None:
        message = Message(id=scan.scan, source=SCANNERS, type="parcel.scanned", payload=scan, key=scan.parcel)
        while True:
            try:
                if await self._sink.publish([message]) == [None]:
                    return
            except Exception:  # the broker is away, or its queue is not there yet: sent again
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(PAUSE_SECONDS)
