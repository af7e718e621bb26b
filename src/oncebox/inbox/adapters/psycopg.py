"""psycopg connections, blocking and async."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import generators
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row

from oncebox.core.guard import View
from oncebox.core.queries import Queries
from oncebox.core.steps import Call
from oncebox.engines import postgresql
from oncebox.engines.queries import load
from oncebox.inbox.adapters import views
from oncebox.inbox.adapters.base import Adapter, Statement, autocommit, outdated, positional, refusing


class Psycopg(Adapter):
    """A blocking connection. Idle is fine: its first statement opens a transaction."""

    style = staticmethod(positional)

    def __init__(self, handle: Any) -> None:
        self.raw = handle

    def join(self, schema: str) -> Queries:
        if self.raw.autocommit and not self.view().open:
            raise autocommit("use conn.transaction(), or connect without autocommit=True")
        self.queries = load("postgresql", schema)
        return self.queries

    def view(self) -> View:
        return views.psycopg(self.raw)

    def fetch(self, call: Call) -> Any:
        return self._open_with(call) if self._may_open_with(call) else super().fetch(call)

    def _may_open_with(self, call: Call) -> bool:
        """Whether the claim is what opens the transaction, and a plain BEGIN is all that opens it."""
        raw = self.raw
        return (
            call.query.name == "guard_claim"
            and raw.pgconn.transaction_status == TransactionStatus.IDLE
            and raw.pgconn.pipeline_status == PipelineStatus.OFF
            and raw.isolation_level is None
            and raw.read_only is None
            and raw.deferrable is None
            and raw.pgconn.parameter_status(b"client_encoding") == b"UTF8"
        )

    def _open_with(self, call: Call) -> Any:
        # psycopg would send BEGIN by itself first, and wait for it.
        with refusing, self.raw.lock:
            self.raw.pgconn.send_query(self._opening(call))
            return _rows(self.raw.wait(generators.execute(self.raw.pgconn)))

    def _opening(self, call: Call) -> bytes:
        shown = (self.raw.pgconn.parameter_status(b"application_name") or b"").decode()
        mark = f"{call.params['token']}.{call.params['serial']}"
        # As in guard_claim: what is reported must fit into the 63 bytes of a name.
        name = f"{shown.partition(' oncebox:')[0][:34]} oncebox:{mark}"
        version = self.raw.pgconn.server_version
        return postgresql.guard_open(self.queries, call.params, name, mark, version).encode()

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

    async def _open_with(self, call: Call) -> Any:
        with refusing:
            async with self.raw.lock:
                self.raw.pgconn.send_query(self._opening(call))
                return _rows(await self.raw.wait(generators.execute(self.raw.pgconn)))

    async def send(self, sent: list[Statement], *, fetch: bool = False) -> Any:
        rows: list[tuple[Any, ...]] = []
        with refusing:
            async with psycopg.AsyncCursor(self.raw, row_factory=tuple_row) as cursor:
                for text, params in sent:
                    await cursor.execute(text.encode(), params)
                    if fetch:
                        rows += await cursor.fetchall()
        return rows


def _rows(results: Sequence[PGresult]) -> list[tuple[bytes]]:
    """The claim's answer: what came last, if nothing before it failed; nothing where the key is known."""
    last = results[-1]
    if last.status != ExecStatus.TUPLES_OK:
        error = psycopg.errors.error_from_result(last, "utf-8")
        if isinstance(error, psycopg.errors.UndefinedFunction):
            raise outdated() from error
        raise error
    shown = last.get_value(0, 0) if last.ntuples else None
    return [] if shown is None else [(shown,)]
