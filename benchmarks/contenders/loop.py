"""The library's inner loop alone: intake, flow and driver, without source, acks and tallies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.contenders.base import Contender
from benchmarks.contenders.library import HANDLERS, SCHEMES
from benchmarks.load import TYPE, Load
from benchmarks.stage import Place
from oncebox import App, Message
from oncebox.core.inline import stream
from oncebox.core.run import run, run_async
from oncebox.runtime.members import connection_settings
from oncebox.runtime.performer import Performer


class WorkerLoop(Contender):
    """One worker's flow over messages that are at hand; for information, no user gets only this."""

    label = "worker loop"

    def __init__(self, driver: str, load: Load | None = None, **policy: Any) -> None:
        super().__init__(driver, 1, load)
        self.kind = driver
        self.policy = policy

    async def open(self, stage: Place) -> None:
        app = App(f"{SCHEMES[self.kind]}://{stage.url.split('://', 1)[1]}")
        self.consumer = app.consumer("bench-loop", **self.policy)
        self.consumer.handler(TYPE)(HANDLERS[self.kind, False](lambda count: None))
        self._is_async = self.kind == "asyncpg"
        self._threads = ThreadPoolExecutor(1)
        settings = connection_settings(self.consumer.policy)
        if self._is_async:
            self.session = await app.database.connect_async(settings)
        else:
            self.session = app.database.connect(settings)
        self.work = self.consumer.work("bench-loop", 1)

    async def run(self, messages: Sequence[Message]) -> float:
        intake = self.consumer.intake.from_message
        items = map(intake, messages)
        performer = Performer(
            self.work,
            self.session,
            lambda call: None,
            is_async=self._is_async,
            next_item=lambda: next(items, None),
        )
        started = time.perf_counter()
        flow = stream(self.work, next(items))
        if self._is_async:
            await run_async(flow, performer)
        else:
            await asyncio.get_running_loop().run_in_executor(self._threads, run, flow, performer)
        return time.perf_counter() - started

    async def close(self) -> None:
        closing = self.session.close()
        if self._is_async:
            await closing
        self._threads.shutdown()
