"""Runs the three services as processes, sends scans, kills what it may, and counts what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from examples.delivery.parts import TOKEN, Broker, Scan, connect, memory, set_up
from examples.delivery.processes import Crew
from examples.delivery.provider import Provider
from examples.delivery.senders import Senders
from examples.delivery.standing import standing
from oncebox.engines.queries import prefix

SERVICES = ("intake", "tracking", "notify")
LOOK_SECONDS = 0.1
STALL_SECONDS = 120.0
"""Without any progress for this long, the run is over, and what is missing counts as lost."""

TELL_SECONDS = 3.0

Mishap = Callable[[], None]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How much is sent, how much goes wrong, and on what it runs."""

    scans: int = 200
    kills: int = 8
    seed: int = 0
    database: str = ""
    """`postgresql://…`: three databases are made there, and dropped afterwards. Else: three SQLite files."""
    broker: str = ""
    """`amqp://…`. Else: a broker in this process, served to the others."""


class Figures(msgspec.Struct, kw_only=True):
    """What there is to see, so far or in the end."""

    scans: int = 0
    sent: int = 0
    stored: int = 0
    moved: int = 0
    notified: int = 0
    """Requests that the provider knows by a key of their own."""
    calls: int = 0
    kills: int = 0
    seconds: float = 0.0
    lost: int = 0
    doubled: int = 0

    @property
    def progress(self) -> int:
        """Steps that are done, three for each scan."""
        return self.stored + self.moved + self.notified


class Chain:
    """One run. `figures` tells how far it is."""

    def __init__(self, options: Options, folder: Path, mishaps: Sequence[Mishap] = ()) -> None:
        self.options = options
        self.folder = folder
        self.figures = Figures(scans=options.scans)
        self._chance = random.Random(options.seed)
        self._mishaps = list(mishaps)
        self._scans = _scans(options.scans, self._chance)
        self._urls: dict[str, str] = {}
        self.provider = Provider(options.seed)
        self.standing = ""
        """What waited where, when nothing moved any more."""

    async def run(self) -> Figures:
        """From the first scan to the count."""
        started = time.monotonic()
        # The socket is the chain's: nobody else gets the port while the intake is dead, and who calls meanwhile waits
        # for the next one.
        listening = socket.create_server(("127.0.0.1", 0))
        with listening, databases(self.options.database, self.folder) as self._urls, self.provider:
            for service, url in self._urls.items():
                set_up(service, url)
            async with self._brokered() as (address, names):
                port = listening.getsockname()[1]
                common = {
                    "DELIVERY_BROKER": address, "DELIVERY_PREFIX": names, "DELIVERY_PROVIDER": self.provider.url
                }  # fmt: skip
                crew = Crew(self._urls, common, self.folder, {"intake": listening})
                senders = Senders(
                    Broker(address, names), f"http://127.0.0.1:{port}/scans", TOKEN, self._chance
                )
                async with crew, senders:
                    sending = asyncio.create_task(senders.send(self._scans))
                    try:
                        await self._watch(crew, senders)
                    finally:
                        sending.cancel()
                        [said] = await asyncio.gather(sending, return_exceptions=True)
                        if isinstance(said, Exception):
                            self.standing += f"senders: {said!r}\n"
            self.figures.seconds = time.monotonic() - started
            self._judge()
        return self.figures

    @asynccontextmanager
    async def _brokered(self) -> AsyncIterator[tuple[str, str]]:
        """The broker's address, and what the names of its queues begin with."""
        names = f"delivery-{secrets.token_hex(4)}-"
        if self.options.broker:
            yield self.options.broker, names
            return
        async with memory(names).serve() as address:
            yield address, names

    async def _watch(self, crew: Crew, senders: Senders) -> None:
        """Until all is done, or nothing moves any more; meanwhile things go wrong at their time."""
        figures, total = self.figures, 3 * self.options.scans
        wrongs: list[Mishap | None] = [*self._mishaps, *([None] * self.options.kills)]
        self._chance.shuffle(wrongs)
        due = [total * number // (len(wrongs) + 1) for number in range(1, len(wrongs) + 1)]
        moved_at, best = time.monotonic(), -1
        # What is still to go wrong goes wrong under load: the rest is not sent before.
        senders.most = due[0] // 3 + 1 if due else math.inf
        while not (figures.progress >= total and senders.done and self._idle()):
            self._count()
            figures.sent = senders.sent
            if figures.progress > best:
                best, moved_at = figures.progress, time.monotonic()
            else:
                senders.most += 1  # a scan may wait for one that was not sent yet
            if due and figures.progress >= due[0] and crew.anybody_works():
                due.pop(0)
                mishap = wrongs.pop()
                if mishap is not None:
                    await asyncio.to_thread(mishap)
                    moved_at = time.monotonic()
                else:
                    figures.kills += await crew.kill(self._chance)
                senders.most = max(senders.most, due[0] // 3 + 1) if due else math.inf
            if time.monotonic() - moved_at > STALL_SECONDS:
                self.standing = standing(self._rows, SERVICES) + f"\nsenders done: {senders.done}\n"
                # Into the services' logs: where every thread and task of theirs is.
                crew.signal(signal.SIGUSR1)
                await asyncio.sleep(TELL_SECONDS)
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _count(self) -> None:
        with contextlib.suppress(Exception):  # a database that is being restarted says nothing
            self.figures.stored = self._rows("intake", "SELECT count(DISTINCT id) FROM scan")[0][0]
            self.figures.moved = self._rows("tracking", "SELECT count(DISTINCT scan) FROM move")[0][0]
        self.figures.notified = len(self.provider.requests)
        self.figures.calls = len(self.provider.calls)

    def _idle(self) -> bool:
        """Nothing waits anywhere: what could still be done twice would have been."""
        try:
            return not any(
                self._rows(service, f"SELECT 1 FROM {{p}}{table} LIMIT 1")  # noqa: S608 - two names of ours
                for service in SERVICES
                for table in ("outbox", "queue")
            )
        except Exception:
            return False

    def _rows(self, service: str, text: str) -> list[Any]:
        url = self._urls[service]
        text = text.replace("{p}", prefix("sqlite" if url.startswith("sqlite") else "postgresql", "oncebox"))
        with closing(connect(url)) as connection:
            rows: list[Any] = connection.execute(text).fetchall()
            return rows

    def _judge(self) -> None:
        """Each scan: one row, one move, one key at the provider. Each key: one scan."""
        self._count()
        wanted = {scan.scan for scan in self._scans}
        stored = Counter(row[0] for row in self._rows("intake", "SELECT id FROM scan"))
        moved = Counter(row[0] for row in self._rows("tracking", "SELECT scan FROM move"))
        keys = Counter(scan for scan, _ in {(body["scan"], key) for key, body in self.provider.calls})
        told = Counter(key for key, _ in {(key, body["scan"]) for key, body in self.provider.calls})
        stages = (stored, moved, keys)
        self.figures.lost = sum(any(scan not in stage for stage in stages) for scan in wanted)
        self.figures.doubled = sum(any(stage[scan] > 1 for stage in stages) for scan in wanted)
        self.figures.doubled += sum(count > 1 for count in told.values())


def _scans(count: int, chance: random.Random) -> list[Scan]:
    """Five scans to a parcel, sent more or less in order."""
    steps = ("accepted", "in transit", "at depot", "out for delivery", "delivered")
    made = [
        Scan(f"scan-{n}", f"parcel-{n // 5}", n % 5 + 1, steps[n % 5], f"+49 30 {n // 5:06}")
        for n in range(count)
    ]
    return sorted(made, key=lambda scan: scan.version + chance.uniform(0, 1.5))


@contextmanager
def databases(url: str, folder: Path) -> Iterator[dict[str, str]]:
    """A database for each service: files in `folder`, or new ones on a PostgreSQL server."""
    if not url:
        yield {service: f"sqlite:///{folder / service}.db" for service in SERVICES}
        return
    import psycopg

    mark = secrets.token_hex(4)
    names = {service: f"delivery_{mark}_{service}" for service in SERVICES}
    try:
        with closing(psycopg.connect(url, autocommit=True)) as server:
            for name in names.values():
                server.execute(f'CREATE DATABASE "{name}"'.encode())
        yield {service: urlsplit(url)._replace(path=f"/{name}").geturl() for service, name in names.items()}
    finally:
        with closing(psycopg.connect(url, autocommit=True)) as server:
            for name in names.values():
                server.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())
