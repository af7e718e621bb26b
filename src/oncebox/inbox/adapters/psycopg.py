"""psycopg connections, blocking and async."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from oncebox.core.guard import View
from oncebox.core.queries import Queries
from oncebox.engines.queries import load
from oncebox.inbox.adapters import views
from oncebox.inbox.adapters.base import Adapter, Statement, autocommit, positional, refusing


class Psycopg(Adapter):
    """A blocking connection. Idle is fine: its first statement opens a transaction."""

    style = staticmethod(positional)

    def __init__(self, handle: Any) -> None:
        self.raw = handle

    def join(self, schema: str) -> Queries:
        if self.raw.autocommit and not self.view().open:
            raise autocommit("use conn.transaction(), or connect without autocommit=True")
        return load("postgresql", schema)

    def view(self) -> View:
        return views.libpq(self.raw)

    def send(self, sent: list[Statement], *, fetch: bool = False) -> Any:
        rows: list[tuple[Any, ...]] = []
        # A cursor of our own making: the connection's factories may want other placeholders and rows.
        with refusing, psycopg.Cursor(self.raw, row_factory=tuple_row) as cursor:
            for text, params in sent:
                cursor.execute(text.encode(), params)
                if fetch:
                    rows += cursor.fetchall()
        return rows


class AsyncPsycopg(Psycopg):
    """An async connection."""

    awaits = True

    async def send(self, sent: list[Statement], *, fetch: bool = False) -> Any:
        rows: list[tuple[Any, ...]] = []
        with refusing:
            async with psycopg.AsyncCursor(self.raw, row_factory=tuple_row) as cursor:
                for text, params in sent:
                    await cursor.execute(text.encode(), params)
                    if fetch:
                        rows += await cursor.fetchall()
        return rows
