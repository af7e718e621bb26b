"""The runtime's own connections: heartbeats, markers, receiving. Few, and outside the app's pool.

They are made by the engine's recipe, whatever is in it (URL, connect_args, creator, listeners that
fetch a token), and then taken from SQLAlchemy for good, so that they may have settings of their own
and belong to the event loop that asked. An async connection made for one loop is of no use to
another, and the heartbeat has a loop, and a thread, to itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.util import greenlet_spawn

from oncebox.core.queries import Queries
from oncebox.core.steps import Begin, Call, Commit, Execute
from oncebox.drivers.session import Session, Settings
from oncebox.drivers.sqlalchemy import outcomes
from oncebox.drivers.sqlalchemy.given import Given
from oncebox.drivers.sqlalchemy.postgres import unreachable

_LISTEN_SECONDS = 0.5


def _fresh(engine: Engine) -> Any:
    """A driver connection that no pool knows."""
    fairy = engine.pool.recreate().connect()
    driver = fairy.driver_connection
    fairy.detach()
    return driver


def connect(given: Given, queries: Queries, settings: Settings) -> Session:
    """A blocking psycopg session, or DatabaseUnavailable."""
    from psycopg.rows import tuple_row

    from oncebox.drivers.psycopg import PsycopgSession

    raw: Any = None
    try:
        raw = _fresh(given.engine)
        raw.autocommit, raw.row_factory = True, tuple_row
        session = PsycopgSession(raw, queries, settings, pooled=raw.prepare_threshold is None)
        if statements := session.opening_statements():
            raw.execute(statements.encode())
    except BaseException as error:
        if raw is not None:
            raw.close()
        raise _explained(given, error) from None
    return session


async def connect_async(given: Given, queries: Queries, settings: Settings) -> Session:
    """An async session on a driver of the app's: of the engine's own kind, or a blocking one in a thread."""
    if given.async_engine is None:
        return await Threaded.open(lambda: connect(given, queries, settings))
    raw: Any = None
    try:
        raw = await greenlet_spawn(_fresh, given.engine)
        if given.driver == "asyncpg":
            return await _asyncpg_session(raw, queries, settings)
        return await _psycopg_session(raw, queries, settings)
    except BaseException as error:
        if raw is not None:
            (raw.terminate if given.driver == "asyncpg" else raw.pgconn.finish)()
        raise _explained(given, error) from None


async def _asyncpg_session(raw: Any, queries: Queries, settings: Settings) -> Session:
    from oncebox.drivers.asyncpg import AsyncpgSession

    # Without a statement cache the app is behind a transaction pooler: nothing is set there.
    session = AsyncpgSession(raw, queries, settings, pooled=not raw._config.statement_cache_size)
    if statements := session.opening_statements():
        await raw.execute(statements)
    return session


async def _psycopg_session(raw: Any, queries: Queries, settings: Settings) -> Session:
    from psycopg.rows import tuple_row

    from oncebox.drivers.psycopg import AsyncPsycopgSession

    await raw.set_autocommit(True)
    raw.row_factory = tuple_row
    session = AsyncPsycopgSession(raw, queries, settings, pooled=raw.prepare_threshold is None)
    if statements := session.opening_statements():
        await raw.execute(statements.encode())
    return session


def _explained(given: Given, error: BaseException) -> BaseException:
    return unreachable(given, error) if outcomes.is_drivers(error) else error


class Threaded:
    """A blocking session under an event loop: its steps run, one after the other, in a thread of its own."""

    def __init__(self, executor: ThreadPoolExecutor, session: Session) -> None:
        self._executor = executor
        self._session = session
        self.queries = session.queries
        self.raw = session.raw

    @classmethod
    async def open(cls, make: Callable[[], Session]) -> Threaded:
        """Connect in the thread; raises what `make` raises."""
        executor = ThreadPoolExecutor(1, thread_name_prefix="oncebox-sqlalchemy")
        connecting = executor.submit(make)
        try:
            return cls(executor, await asyncio.wrap_future(connecting))
        except BaseException:
            connecting.add_done_callback(_close_unwanted)
            executor.shutdown(wait=False)
            raise

    @property
    def broken(self) -> bool:
        """Whether the connection is of no more use."""
        return self._session.broken

    def _run(self, step: Callable[..., Any], *args: Any) -> Any:
        return asyncio.get_running_loop().run_in_executor(self._executor, step, *args)

    def begin(self, step: Begin) -> Any:
        return self._run(self._session.begin, step)

    def execute(self, step: Execute) -> Any:
        return self._run(self._session.execute, step)

    def execute_text(self, text: str) -> Any:
        return self._run(self._session.execute_text, text)

    def fetch(self, call: Call) -> Any:
        return self._run(self._session.fetch, call)

    def save(self, first: bool) -> Any:
        return self._run(self._session.save, first)

    def restore(self) -> Any:
        return self._run(self._session.restore)

    def commit(self, step: Commit) -> Any:
        return self._run(self._session.commit, step)

    def rollback(self) -> Any:
        return self._run(self._session.rollback)

    def side(self, call: Call) -> Any:
        return self._run(self._session.side, call)

    def vouch(self, call: Call) -> Any:
        return self._run(self._session.vouch, call)

    async def listen(self, channel: str, ring: Callable[[], None]) -> None:
        """Ring for every NOTIFY, until cancelled or the connection is lost."""
        await self._run(self.raw.execute, f"LISTEN {channel}")
        while True:
            if await self._run(self._hear):
                ring()

    def _hear(self) -> bool:
        """Whether anybody called within a short while; a longer one would hold up `close`."""
        return bool(list(self.raw.notifies(timeout=_LISTEN_SECONDS, stop_after=1)))

    def handle(self, kind: str | None = None) -> Any:
        """Nothing: a handler of this colour has no use for a blocking connection."""

    def handled(self) -> Any:
        """Nothing was handed out."""

    def explain(self, error: BaseException) -> BaseException:
        return self._session.explain(error)

    def cancel(self) -> None:
        self._session.cancel()

    async def close(self) -> None:
        try:
            await self._run(self._session.close)
        finally:
            self._executor.shutdown(wait=False)


def _close_unwanted(connecting: Future[Session]) -> None:
    """Whoever asked was cancelled, and the connection came all the same."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()
