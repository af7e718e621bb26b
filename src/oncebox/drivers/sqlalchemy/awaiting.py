"""The same steps under an event loop: each runs in a greenlet, where SQLAlchemy awaits for it."""

from __future__ import annotations

from typing import Any

from sqlalchemy.util import greenlet_spawn

from oncebox.core.steps import Begin, Call, Commit, Execute
from oncebox.drivers.sqlalchemy.session import SqlAlchemySession


class Awaiting(SqlAlchemySession):
    """Steps return awaitables. `handle` and `explain` never wait."""

    async def begin(self, step: Begin) -> Any:
        if self.turn is not None:
            await self.turn.take_async()
        return await greenlet_spawn(self._begin, step)

    async def execute(self, step: Execute) -> Any:
        return await greenlet_spawn(super().execute, step)

    async def execute_text(self, text: str) -> Any:
        await greenlet_spawn(super().execute_text, text)

    async def fetch(self, call: Call) -> Any:
        return await greenlet_spawn(super().fetch, call)

    side = fetch

    async def vouch(self, call: Call) -> Any:
        return await greenlet_spawn(super().vouch, call)

    async def save(self, first: bool) -> Any:
        await greenlet_spawn(super().save, first)

    async def restore(self) -> Any:
        await greenlet_spawn(super().restore)

    async def commit(self, step: Commit) -> Any:
        await greenlet_spawn(self._finish, step)
        return await self.begin(step.then) if step.then is not None else 0

    async def handled(self) -> Any:
        await greenlet_spawn(self._settle)

    async def rollback(self) -> Any:
        await greenlet_spawn(super().rollback)

    async def close(self) -> Any:
        await greenlet_spawn(super().close)

    def cancel(self) -> None:
        """Nobody needs to: a task that runs late is cancelled itself."""
