"""Connections that stay open from cell to cell: to open one costs more than everything a cell does with it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

from oncebox import errors
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings
from oncebox.drivers.sqlite import SqliteSession
from oncebox.runtime.sessions import finished

LEAVES_CONNECTIONS_WHOLE = ("error", "conflict", "busy", "away", "cut")
"""Faults after which a connection is as good as before, unless it is the one that was cut. A cancellation is not
among them: it may come late, and would hit whoever has the connection next."""


class Kept(Database):
    """A database whose connections, when closed, are rolled back and kept for the next who asks."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._free: dict[tuple[bool, Settings], list[Any]] = defaultdict(list)
        self._runner: asyncio.Runner | None = None

    def connect(self, settings: Settings) -> Session:
        free = self._free[False, settings]
        session: Any = free.pop() if free else super().connect(settings)

        def give_back() -> None:
            del session.close
            session.rollback()
            if is_whole(session):
                free.append(session)
            else:
                session.close()

        session.close = give_back
        return session  # type: ignore[no-any-return]

    async def connect_async(self, settings: Settings) -> Session:
        free = self._free[True, settings]
        session: Any = free.pop() if free else await super().connect_async(settings)

        async def give_back() -> None:
            del session.close
            try:
                await finished(session.rollback())
            except (errors.OnceboxError, OSError):
                await finished(session.close())
                return
            if is_whole(session):
                free.append(session)
            else:
                await finished(session.close())

        session.close = give_back
        return session  # type: ignore[no-any-return]

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """As `asyncio.run`, in a loop that outlives it, as the connections must."""
        self._runner = self._runner or asyncio.Runner()
        try:
            self._runner.run(coroutine)
        finally:
            self._runner.run(_cancel_the_rest())

    def close(self) -> None:
        """Close what is kept."""
        sessions, self._free = self._free, defaultdict(list)
        if self._runner is not None:
            self._runner.run(
                _close([each for (is_async, _), those in sessions.items() if is_async for each in those])
            )
            self._runner.close()
        for (is_async, _), those in sessions.items():
            for session in those if not is_async else ():
                session.close()


def is_whole(session: Any) -> bool:
    """Whether the next who gets it finds it as new."""
    if session.broken or getattr(session, "severed", False):
        return False
    if isinstance(session, SqliteSession):
        return not session.raw.in_transaction
    return not session.in_transaction()


async def _cancel_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


async def _close(sessions: list[Any]) -> None:
    for session in sessions:
        await finished(session.close())
