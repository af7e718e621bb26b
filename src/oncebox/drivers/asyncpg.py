"""asyncpg. Its simple protocol answers with the last command's tag, which tells a new claim
(`INSERT 0 1`) from a duplicate (`INSERT 0 0`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
from asyncpg.transaction import Transaction, TransactionState

from oncebox import errors
from oncebox.core.queries import Queries
from oncebox.core.steps import Begin, Call, Commit
from oncebox.drivers.session import PostgresSession, Settings
from oncebox.engines import postgresql

LISTEN_CHECK_SECONDS = 10.0
_LOST = (OSError, asyncpg.InterfaceError, asyncio.TimeoutError)


def translated(error: BaseException, *, committing: bool = False) -> errors.OnceboxError:
    """The flow's name for an asyncpg error."""
    sqlstate = getattr(error, "sqlstate", None)
    return postgresql.outdated(error) or postgresql.translate(sqlstate, committing=committing)


def _rowcount(tag: str | None) -> int:
    if tag == "INSERT 0 1":  # nearly all: a claim of something new
        return 1
    last = (tag or "").rpartition(" ")[2]
    return int(last) if last.isdigit() else 0


class AsyncpgSession(PostgresSession):
    """A held asyncpg connection."""

    def __init__(self, raw: Any, queries: Queries, settings: Settings, pooled: bool) -> None:
        self.raw, self.queries, self.settings, self.pooled = raw, queries, settings, pooled

    @classmethod
    async def open(cls, url: str, queries: Queries, settings: Settings, pooled: bool) -> AsyncpgSession:
        """Connect, or DatabaseUnavailable; never with the password in the text."""
        try:
            raw = await asyncpg.connect(url, timeout=10, statement_cache_size=0 if pooled else 100)
            session = cls(raw, queries, settings, pooled)
            try:
                if statements := session.opening_statements():
                    await raw.execute(statements)
                    await session._prepare()
            except BaseException:
                raw.terminate()
                raise
        except (asyncpg.PostgresError, *_LOST) as error:
            raise unreachable(error) from None
        return session

    async def _prepare(self) -> None:
        try:
            claims = postgresql.Claims(self.queries)
            await self.raw.execute(claims.prepare())
            self.claims = claims
            if await self.raw.fetchval(postgresql.has_check(self.queries)):
                self.check = postgresql.check(self.queries)
        except asyncpg.PostgresError:
            self.claims = None  # no tables yet: the first statement says so

    def begin(self, step: Begin) -> Any:
        self._open()
        return super().begin(step)

    def commit(self, step: Commit) -> Any:
        if step.then is None:
            self.raw._top_xact = None
        return super().commit(step)

    def _open(self) -> None:
        # asyncpg refuses connection.transaction() inside a BEGIN it did not send. A started
        # Transaction in this slot makes a handler's own one a savepoint, as users expect.
        outer = Transaction(self.raw, None, False, False)
        outer._state = TransactionState.STARTED
        self.raw._top_xact = outer

    async def _script(self, text: str, *, committing: bool = False) -> int:
        try:
            return _rowcount(await self.raw.execute(text))
        except (asyncpg.PostgresError, *_LOST) as error:
            self._failed(getattr(error, "sqlstate", None))
            # Whoever deallocated ours deallocated asyncpg's own as well.
            self.broken = self.raw.is_closed() or isinstance(error, asyncpg.InvalidSQLStatementNameError)
            raise translated(error, committing=committing) from error

    async def _fetch(self, call: Call) -> list[tuple[Any, ...]]:
        params = postgresql.parameters(call)
        values = [params[name] for name in call.query.names]
        try:
            if self.pooled and not self.raw.is_in_transaction():
                # Parse and Execute are two messages; outside a transaction a pooler may send them
                # to two servers.
                async with self.raw.transaction():
                    return await self.raw.fetch(call.query.numbered, *values)  # type: ignore[no-any-return]
            return await self.raw.fetch(call.query.numbered, *values)  # type: ignore[no-any-return]
        except (asyncpg.PostgresError, *_LOST) as error:
            self.broken = self.raw.is_closed()
            raise translated(error) from error

    def in_transaction(self) -> bool:
        return bool(self.raw.is_in_transaction())

    def handled(self) -> None:
        # All is well as a rule; the long way says what is not.
        if self.raw.is_closed() or not self.raw.is_in_transaction():
            super().handled()

    async def execute_text(self, text: str) -> None:
        """Plain SQL, for migrations."""
        await self._script(text)

    def _translated(self, error: BaseException) -> BaseException:
        if self.raw.is_closed():
            self.broken = True
            return errors.DatabaseUnavailable("the database connection was lost")
        return translated(error) if getattr(error, "sqlstate", None) else error

    async def rollback(self) -> None:
        self.raw._top_xact = None
        try:
            if self.raw.is_in_transaction():
                await self.raw.execute("ROLLBACK")
        except (asyncpg.PostgresError, *_LOST):
            self.broken = True

    async def listen(self, channel: str, ring: Callable[[], None]) -> None:
        """Ring for every NOTIFY, until cancelled or the connection is lost."""
        await self.raw.add_listener(channel, lambda *_: ring())
        while True:
            await asyncio.sleep(LISTEN_CHECK_SECONDS)
            await self._script("SELECT 1")

    async def close(self) -> None:
        if not self.broken:
            try:
                await self.raw.close(timeout=5)
                return
            except (asyncpg.PostgresError, *_LOST):
                pass  # lost without anybody's having noticed: there is no one to say goodbye to
        self.raw.terminate()


def unreachable(error: BaseException) -> errors.OnceboxError:
    """Why no connection could be had, without the connection string."""
    if getattr(error, "sqlstate", None) in ("28P01", "28000"):
        return errors.DatabaseUnavailable(
            "the database refused the user name or password; check the URL's user, its password and pg_hba.conf"
        )
    return errors.DatabaseUnavailable(f"the database can't be reached: {str(error) or type(error).__name__}")
