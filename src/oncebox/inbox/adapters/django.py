"""Django's `connection`, inside `transaction.atomic()`, over SQLite and PostgreSQL."""

from __future__ import annotations

import weakref
from typing import Any

from django.db import connections

from oncebox.core.guard import View
from oncebox.core.queries import Queries
from oncebox.engines.queries import load
from oncebox.errors import UnknownHandle
from oncebox.inbox.adapters import views
from oncebox.inbox.adapters.base import Adapter, Statement, autocommit, positional, refusing
from oncebox.message import MessageKey

_VIEWS = {"postgresql": views.libpq, "sqlite": views.sqlite}
_claimed: weakref.WeakKeyDictionary[Any, dict[tuple[Queries, MessageKey], str]] = weakref.WeakKeyDictionary()
"""Per connection: in which of a test's atomic() blocks a key was claimed."""


class Django(Adapter):
    """One thread's connection of an alias."""

    style = staticmethod(positional)

    def __init__(self, handle: Any) -> None:
        # django.db.connection is a proxy for whatever thread looks; the claim stays on this one's.
        self.wrapper = connections[handle.alias]

    def join(self, schema: str) -> Queries:
        wrapper = self.wrapper
        if wrapper.vendor not in _VIEWS:
            raise UnknownHandle(
                f"the guard knows Django over {' and '.join(_VIEWS)}; {wrapper.alias!r} is {wrapper.vendor}"
            )
        if self._outer_blocks() == len(wrapper.atomic_blocks):
            raise autocommit("use transaction.atomic(), also where a TestCase would stand in for it")
        self.dialect = wrapper.vendor
        self.raw = wrapper.connection
        self.queries = load(self.dialect, schema)
        return self.queries

    def view(self) -> View:
        wrapper = self.wrapper
        if wrapper.connection is not self.raw or not wrapper.in_atomic_block:
            return View(open=False)
        view = _VIEWS[self.dialect](self.raw)
        # Django's own memory of a swallowed error: atomic() will roll back without a word.
        return View(open=view.open, failed=view.failed or wrapper.needs_rollback, mark=view.mark)

    def send(self, sent: list[Statement], *, fetch: bool = False) -> Any:
        rows: list[tuple[Any, ...]] = []
        with refusing, self.wrapper.cursor() as cursor:
            for text, params in sent:
                cursor.execute(text, params)
                if fetch:
                    rows += cursor.fetchall()
        return rows

    def opened(self, key: MessageKey) -> None:
        if played := self._played_transaction():
            _claimed.setdefault(self.wrapper, {})[self.queries, key] = played

    def settled(self, key: MessageKey) -> bool:
        claimed = _claimed.get(self.wrapper, {}).get((self.queries, key))
        return claimed is not None and claimed != self._played_transaction()

    def _outer_blocks(self) -> int:
        """How many of the open atomic() blocks are a TestCase's own."""
        return sum(getattr(block, "_from_testcase", False) for block in self.wrapper.atomic_blocks)

    def _played_transaction(self) -> str | None:
        """The savepoint that stands for the user's transaction in a TestCase; None outside of one."""
        outer = self._outer_blocks()
        savepoint: str | None = self.wrapper.savepoint_ids[outer - 1] if outer else None
        return savepoint
