"""sqlite3 connections, under any of their ways to open transactions."""

from __future__ import annotations

from typing import Any

from oncebox.core.guard import View
from oncebox.core.queries import Queries
from oncebox.engines.queries import load
from oncebox.inbox.adapters import views
from oncebox.inbox.adapters.base import Adapter, Statement, autocommit, named, refusing


class Sqlite3(Adapter):
    """A connection. Idle is fine where Python opens transactions: its first INSERT does."""

    dialect = "sqlite"
    style = staticmethod(named)

    def __init__(self, handle: Any) -> None:
        self.raw = handle

    def join(self, schema: str) -> Queries:
        if commits_itself(self.raw) and not self.view().open:
            raise autocommit("execute BEGIN IMMEDIATE first, or connect without isolation_level=None")
        self.queries = load("sqlite", schema)
        return self.queries

    def view(self) -> View:
        return views.sqlite(self.raw)

    def send(self, sent: list[Statement], *, fetch: bool = False) -> Any:
        rows: list[tuple[Any, ...]] = []
        cursor = self.raw.cursor()
        cursor.row_factory = None  # the connection's may make dictionaries
        try:
            with refusing:
                for text, params in sent:
                    # Fetched to the end: an open RETURNING cursor makes COMMIT fail.
                    rows += cursor.execute(text, params or ()).fetchall()
        finally:
            cursor.close()
        return rows


def commits_itself(raw: Any) -> bool:
    """Whether Python opens no transactions on this connection; `autocommit` is there since 3.12."""
    control = getattr(raw, "autocommit", -1)
    return control is True or (control == -1 and raw.isolation_level is None)
