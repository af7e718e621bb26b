"""asyncpg connections, and the proxies its pool hands out."""

from __future__ import annotations

from typing import Any

import asyncpg

from oncebox.core.guard import View
from oncebox.core.queries import Queries
from oncebox.engines.queries import load
from oncebox.inbox.adapters import views
from oncebox.inbox.adapters.base import Adapter, Statement, autocommit, numbered, refusing


class Asyncpg(Adapter):
    """A connection inside `connection.transaction()`; outside of one, asyncpg commits each statement."""

    awaits = True
    style = staticmethod(numbered)

    def __init__(self, handle: Any) -> None:
        self.raw = handle

    def join(self, schema: str) -> Queries:
        if not self.raw.is_in_transaction():
            raise autocommit("use async with connection.transaction()")
        return load("postgresql", schema)

    def view(self) -> View:
        try:
            return views.asyncpg(self.raw)
        except asyncpg.InterfaceError:
            # The block gave the connection back to its pool.
            return View(open=False)

    async def send(self, sent: list[Statement], *, fetch: bool = False) -> Any:
        rows: list[tuple[Any, ...]] = []
        with refusing:
            for text, params in sent:
                rows += [tuple(record) for record in await self.raw.fetch(text, *(params or ()))]
        return rows
