"""Connections of the runtime: a small pool for single calls, and the process's second connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from oncebox import errors
from oncebox.core.steps import Call
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings

POOL_MAX = 16


class Connections:
    """Blocking connections, one holder at a time each; a broken one is not given out again."""

    def __init__(self, database: Database, settings: Settings, most: int = POOL_MAX) -> None:
        self._database = database
        self._settings = settings
        self._free: list[Session] = []
        self._places = threading.BoundedSemaphore(most)
        self._lock = threading.Lock()

    @contextmanager
    def lend(self) -> Iterator[Session]:
        """A connection for the length of the block."""
        with self._places:
            with self._lock:
                session = self._free.pop() if self._free else None
            if session is None:
                session = self._database.connect(self._settings)
            try:
                yield session
            finally:
                session.rollback()
                if session.broken:
                    session.close()
                else:
                    with self._lock:
                        self._free.append(session)

    def close(self) -> None:
        """Close what is free."""
        with self._lock:
            free, self._free = self._free, []
        for session in free:
            session.close()


class AsyncConnections:
    """The same under an event loop."""

    def __init__(self, database: Database, settings: Settings, most: int = POOL_MAX) -> None:
        self._database = database
        self._settings = settings
        self._free: list[Session] = []
        self._places = asyncio.Semaphore(most)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Session]:
        """A connection for the length of the block."""
        async with self._places:
            session = self._free.pop() if self._free else await self._database.connect_async(self._settings)
            try:
                yield session
            finally:
                await finished(session.rollback())
                if session.broken:
                    await finished(session.close())
                else:
                    self._free.append(session)

    async def close(self) -> None:
        """Close what is free."""
        free, self._free = self._free, []
        for session in free:
            await finished(session.close())


async def finished(reply: Any) -> Any:
    """The reply itself, awaited where it must be."""
    return await reply if hasattr(reply, "__await__") else reply


class SideChannel:
    """The second connection, shared by the blocking workers of a process; reconnects by itself."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._lock = threading.Lock()
        self._session: Session | None = None

    def __call__(self, call: Call) -> Any:
        with self._lock:
            if self._session is None or self._session.broken:
                self.close()
                self._session = self._database.connect(self._settings)
            return self._session.side(call)

    def close(self) -> None:
        """Let the connection go."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


class AsyncSideChannel:
    """The second connection under an event loop."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._lock = asyncio.Lock()
        self._session: Session | None = None

    async def __call__(self, call: Call) -> Any:
        async with self._lock:
            if self._session is None or self._session.broken:
                await self.close()
                self._session = await self._database.connect_async(self._settings)
            return await finished(self._session.side(call))

    async def close(self) -> None:
        """Let the connection go."""
        session, self._session = self._session, None
        if session is not None:
            try:
                await finished(session.close())
            except errors.OnceboxError:
                return
