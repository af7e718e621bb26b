"""`/healthz`, `/readyz` and `/metrics` of an app, as one ASGI application.

What is answered is made of counts, states and names of consumers and types. No payload, header, error text or
connection string gets here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from oncebox.app import App
from oncebox.drivers.session import Settings
from oncebox.errors import OnceboxError, UsageError
from oncebox.metrics.families import CONTENT_TYPE, Family, render
from oncebox.metrics.figures import Subject, counted, seen
from oncebox.metrics.questions import Question
from oncebox.metrics.sharing import Alone, Shared
from oncebox.runtime.http import Receive, Scope, Send, lifespan, nothing_here
from oncebox.runtime.inspect import Reader, StatusReport, read_status
from oncebox.runtime.meter import Meter, Snapshot
from oncebox.runtime.running import Running
from oncebox.runtime.schema import verify_schema_async

log = logging.getLogger("oncebox")

PATHS = ("/healthz", "/readyz", "/metrics")
KEEP_SECONDS = 2.0
"""How long an answer of the database serves for: however many ask, it is asked this often."""
SHARE_SECONDS = 1.0


class Operations:
    """What a probe and a scrape are told. Make it before the app runs: it counts from then on.

    Mount it where you serve HTTP, or let `oncebox run --http` do so. `running` is what `app.running()`
    gave, once it has; without it the app is not ready.
    """

    def __init__(self, app: App, *, shared: Path | None = None) -> None:
        self.app = app
        self.running: Running | None = None
        self.meter = app.tallies.meter = app.tallies.meter or Meter(self._types)
        self._counts = Alone(self._snapshot) if shared is None else Shared(self._snapshot, shared)
        self._reader: Reader | None = None
        self._status = Question(self._read_status)
        self._schema = Question(self._verify_schema)
        self._report: StatusReport | None = None
        self._asked = -KEEP_SECONDS
        self._is_told = False

    def _types(self, consumer: str) -> list[str]:
        found = self.app.consumers.get(consumer)
        return found.registry.names() if found is not None else []

    def _subjects(self) -> dict[str, Subject]:
        return {
            name: Subject(
                tuple(consumer.registry.names()),
                sum(handler.effect is not None for handler in consumer.registry.all()),
            )
            for name, consumer in self.app.consumers.items()
        }

    def _snapshot(self) -> Snapshot:
        snapshot = self.meter.snapshot()
        sweeper = getattr(self.running, "sweeper", None)
        if sweeper is not None:
            snapshot.purged, snapshot.purge_failures = dict(sweeper.counts), sweeper.failures
            snapshot.archived = dict(sweeper.archived)
            snapshot.archive_failures = dict(sweeper.archive_failures)
        return snapshot

    @asynccontextmanager
    async def watching(self, running: Running) -> AsyncIterator[None]:
        """For the length of the block the app runs, and what it counts is told to the other processes."""
        self.running = running
        task = asyncio.create_task(self._share())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self._counts.write()
            await self.close()

    async def _share(self) -> None:
        while True:
            await asyncio.sleep(SHARE_SECONDS)
            self._counts.write()

    async def close(self) -> None:
        """Let the connection go."""
        await self._status.close()
        await self._schema.close()
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def families(self, *, own: bool = False) -> list[Family]:
        """Every metric, as of now; those of the database may be two seconds old. With `own`, the counts are this
        process's alone."""
        subjects = self._subjects()
        counts = self._snapshot() if own else self._counts.together()
        return [*counted(counts, subjects), *seen(await self._recent(), subjects)]

    async def _recent(self) -> StatusReport | None:
        if time.monotonic() - self._asked < KEEP_SECONDS:
            return self._report
        try:
            self._report = await self._status.answer()
            self._is_told = False
        except (OnceboxError, TimeoutError) as error:
            self._report = None
            if not self._is_told:
                log.warning("metrics: the database does not answer (%s)", type(error).__name__)
            self._is_told = True
        self._asked = time.monotonic()
        return self._report

    async def _read_status(self) -> StatusReport:
        if self._reader is None:
            self._reader = Reader(self.app.database, Settings(lock_timeout_seconds=2.0))
        return await self._reader.ask(read_status(self.app.database.queries, self.app.consumers))

    async def _verify_schema(self) -> None:
        await verify_schema_async(self.app.database)

    async def unready(self) -> str:
        """Why nothing should be sent here yet; empty when all is well."""
        if self.running is None or not self.running.is_open:
            return "not started"
        if not self.running.sources_open:
            return "a source's broker has not been reached yet"
        try:
            await self._schema.answer()
        except TimeoutError:
            return "the database does not answer in time"
        except UsageError:
            return "the schema does not fit: run oncebox migrate"
        except OnceboxError:
            return "the database can't be reached"
        return ""

    def unhealthy(self) -> str:
        """Why this process should be started again; empty when all is well. That it answers shows that its
        event loop turns."""
        running = self.running
        if running is not None and running.is_open and not running.keeper.is_alive():
            return "the heartbeat has ended"
        return ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        path = str(scope["path"]).rstrip("/")
        name = next((each for each in PATHS if path.endswith(each)), None)
        if scope["type"] != "http" or name is None:
            await nothing_here(scope, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await _respond(send, 405, b'{"error": "only GET"}', "application/json")
        elif name == "/metrics":
            await _respond(send, 200, render(await self.families()), CONTENT_TYPE)
        else:
            why = self.unhealthy() if name == "/healthz" else await self.unready()
            document: dict[str, Any] = {"ok": not why, **({"why": why} if why else {})}
            await _respond(send, 503 if why else 200, json.dumps(document).encode(), "application/json")


async def _respond(send: Send, status: int, body: bytes, content_type: str) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
