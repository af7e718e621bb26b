"""psycopg 3, blocking and async. Our connections are in autocommit: BEGIN and COMMIT are ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import generators
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from oncebox import errors
from oncebox.core.queries import Queries
from oncebox.core.steps import Begin, Call
from oncebox.drivers.session import PostgresSession, Settings
from oncebox.engines import postgresql

_KEEPALIVE: dict[str, Any] = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30000,
}


LINKS_MAX = 20
LOOK_SECONDS = 0.005
LET_GO_SECONDS = 1.0
"""What a handler has left at work may end by itself meanwhile: a stream that was not read to its end is closed."""
TOLD_SECONDS = 0.1
"""For whoever waits for what was stopped, to hear of it before the socket goes, whose number is the next one's."""
_OK = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK, ExecStatus.EMPTY_QUERY)


def translated(error: psycopg.Error, *, committing: bool = False) -> errors.OnceboxError:
    """The flow's name for a psycopg error."""
    if error.sqlstate is None and not isinstance(error, psycopg.OperationalError):
        return errors.DatabaseError(f"psycopg refused ({type(error).__name__})")
    if postgresql.outdated(error) is not None:
        return _stale()
    return postgresql.translate(error.sqlstate, committing=committing)


def _stale() -> errors.DatabaseUnavailable:
    """psycopg keeps what it has prepared until it sees a ROLLBACK pass, and ours go past it: a statement whose table
    was changed would be refused for good. On a new connection everything is prepared anew, the handler's own too."""
    return errors.DatabaseUnavailable(
        "a table has changed under a prepared statement; the connection is opened anew (0A000)"
    )


def _is_stale(error: BaseException) -> bool:
    """Whether such a refusal is what the error is about, whatever name the handler gave it."""
    link: BaseException | None = error
    for _ in range(LINKS_MAX):
        if link is None:
            return False
        if postgresql.outdated(link) is not None:
            return True
        link = link.__cause__ or link.__context__
    return False


def _values(call: Call) -> list[Any]:
    params = postgresql.parameters(call)
    return [params[name] for name in call.query.order]


class _Psycopg(PostgresSession):
    """What both kinds share: what libpq's answers mean."""

    def _learn(self, claims: postgresql.Claims, answer: PGresult) -> None:
        """The answer to `_ask`: without tables nothing is prepared, and the first statement says so."""
        if answer.status == ExecStatus.TUPLES_OK:
            self.claims = claims
            if answer.get_value(0, 0) == b"t":
                self.check = postgresql.check(self.queries)

    def _ask(self, claims: postgresql.Claims) -> bytes:
        return f"{claims.prepare()}; {postgresql.has_check(self.queries)}".encode()

    def _rows(self, answer: PGresult, committing: bool) -> int:
        """How many rows the last statement changed, or what the server refused."""
        if answer.status in _OK:
            return answer.command_tuples or 0
        refusal = psycopg.errors.error_from_result(answer, "utf-8")
        self.broken = self.raw.closed
        if refusal.sqlstate is None:
            # Not the server's word but libpq's own: nobody is there any more.
            self.broken = True
            raise postgresql.translate(None, committing=committing) from refusal
        self._failed(refusal.sqlstate)
        raise translated(refusal, committing=committing) from refusal

    def handled(self) -> Any:
        # All is well as a rule, and libpq says so in two words; it knows no status of a connection that was closed.
        pgconn = self.raw.pgconn
        if pgconn.transaction_status == TransactionStatus.INTRANS and not pgconn.pipeline_status:
            return None
        return self._handled_late() if self._is_at_work() else super().handled()

    def _is_at_work(self) -> bool:
        """Whether something runs on the connection, which the handler has left: what we sent would wait behind it, for
        ever where it is a COPY, or come out of turn."""
        pgconn = self.raw.pgconn
        return bool(pgconn.pipeline_status) or pgconn.transaction_status == TransactionStatus.ACTIVE

    def _handled_late(self) -> Any:
        """`handled`, once nothing is at work."""
        raise NotImplementedError

    def _let_go(self) -> Any:
        """Wait a moment until nothing is at work; else stop it, close the connection, and raise TransactionEnded."""
        raise NotImplementedError

    def _close_at_work(self) -> errors.TransactionEnded:
        self.raw.pgconn.finish()
        self.broken = True
        return errors.TransactionEnded(
            "the handler returned while its connection was still at work; end every pipeline, stream and COPY, and "
            "wait for every statement, before you return"
        )

    def explain(self, error: BaseException) -> BaseException:
        if _is_stale(error):
            self.broken = True
            return _stale()
        return super().explain(error)

    def failed(self) -> bool:
        return bool(self.raw.info.transaction_status == TransactionStatus.INERROR)

    def in_transaction(self) -> bool:
        return bool(self.raw.info.transaction_status != TransactionStatus.IDLE)

    def _translated(self, error: BaseException) -> BaseException:
        if isinstance(error, errors.TransactionEnded):
            return error  # our own word, after which we may have closed it
        if self.raw.closed:
            self.broken = True
            if self.raw.broken:
                return errors.DatabaseUnavailable("the database connection was lost")
            return errors.TransactionEnded("the handler closed the connection; it belongs to the runtime")
        return translated(error) if isinstance(error, psycopg.Error) and error.sqlstate else error


class PsycopgSession(_Psycopg):
    """A blocking psycopg connection."""

    raw: psycopg.Connection[Any]

    def __init__(
        self, raw: psycopg.Connection[Any], queries: Queries, settings: Settings, pooled: bool
    ) -> None:
        self.raw, self.queries, self.settings, self.pooled = raw, queries, settings, pooled

    @classmethod
    def open(cls, url: str, queries: Queries, settings: Settings, pooled: bool) -> PsycopgSession:
        """Connect, or DatabaseUnavailable; never with the password in the text."""
        try:
            raw = psycopg.connect(
                url,
                autocommit=True,
                prepare_threshold=None if pooled else 5,
                connect_timeout=10,
                **_KEEPALIVE,
            )
            session = cls(raw, queries, settings, pooled)
            try:
                if statements := session.opening_statements():
                    raw.execute(statements.encode())
            except BaseException:
                raw.close()
                raise
        except psycopg.Error as error:
            raise unreachable(error) from None
        return session

    def begin(self, step: Begin) -> int:
        if not self.pooled and self.claims is None:
            self._prepare()
        result: int = super().begin(step)
        return result

    def _prepare(self) -> None:
        claims = postgresql.Claims(self.queries)
        try:
            self._learn(claims, self.raw.pgconn.exec_(self._ask(claims)))
        except psycopg.Error as error:
            self.broken = True
            raise translated(error) from error

    def _script(self, text: str, *, committing: bool = False) -> int:
        # Straight to libpq, which releases the GIL while it waits: half the cost of a cursor. And
        # psycopg, when it sees a ROLLBACK pass, deallocates every prepared statement, ours too.
        try:
            answer = self.raw.pgconn.exec_(text.encode())
        except psycopg.Error as error:
            self.broken = True
            raise translated(error, committing=committing) from error
        return self._rows(answer, committing)

    def _fetch(self, call: Call) -> list[tuple[Any, ...]]:
        try:
            cursor = self.raw.execute(call.query.packed.encode(), _values(call))
            return cursor.fetchall() if cursor.description is not None else []
        except psycopg.Error as error:
            self.broken = self.raw.closed or _is_stale(error)
            raise translated(error) from error

    def execute_text(self, text: str) -> None:
        """Plain SQL, for migrations."""
        self._script(text)

    def restore(self) -> Any:
        if self._is_at_work():
            self._let_go()
        return super().restore()

    def rollback(self) -> None:
        if self._is_at_work():
            with suppress(errors.OnceboxError):
                self._let_go()
        # Twice: a cancellation meant for the handler's statement may come late and hit the first.
        for _ in range(2):
            try:
                if self.in_transaction():
                    self._script("ROLLBACK")
                return
            except errors.OnceboxError:
                if self.raw.closed:
                    break
        self.broken = True

    def _handled_late(self) -> Any:
        self._let_go()
        return self.handled()

    def _let_go(self) -> Any:
        ends = time.monotonic() + LET_GO_SECONDS
        while time.monotonic() < ends:
            time.sleep(LOOK_SECONDS)
            if not self._is_at_work():
                return
        self.cancel()
        if self.raw.lock.acquire(timeout=TOLD_SECONDS):
            self.raw.lock.release()
        raise self._close_at_work()

    def cancel(self) -> None:
        try:
            self.raw.cancel_safe(timeout=5)
        except psycopg.Error:
            self.broken = True

    def close(self) -> None:
        self.raw.close()


class AsyncPsycopgSession(_Psycopg):
    """An async psycopg connection."""

    raw: psycopg.AsyncConnection[Any]

    def __init__(
        self, raw: psycopg.AsyncConnection[Any], queries: Queries, settings: Settings, pooled: bool
    ) -> None:
        self.raw, self.queries, self.settings, self.pooled = raw, queries, settings, pooled

    @classmethod
    async def open(cls, url: str, queries: Queries, settings: Settings, pooled: bool) -> AsyncPsycopgSession:
        """Connect, or DatabaseUnavailable; never with the password in the text."""
        try:
            raw = await psycopg.AsyncConnection.connect(
                url,
                autocommit=True,
                prepare_threshold=None if pooled else 5,
                connect_timeout=10,
                **_KEEPALIVE,
            )
            session = cls(raw, queries, settings, pooled)
            try:
                if statements := session.opening_statements():
                    await raw.execute(statements.encode())
            except BaseException:
                await raw.close()
                raise
        except psycopg.Error as error:
            raise unreachable(error) from None
        return session

    def begin(self, step: Begin) -> Any:
        return super().begin(step) if self.pooled or self.claims is not None else self._begin_prepared(step)

    async def _begin_prepared(self, step: Begin) -> Any:
        claims = postgresql.Claims(self.queries)
        try:
            self._learn(claims, await self._exchange(self._ask(claims)))
        except psycopg.Error as error:
            self.broken = True
            raise translated(error) from error
        return await super().begin(step)

    async def _exchange(self, text: bytes) -> PGresult:
        # By libpq, as the blocking one does, and for the same two reasons.
        raw = self.raw
        if raw.closed:  # its lock may be held by somebody who will never know
            raise psycopg.OperationalError("the connection is closed")
        async with raw.lock:
            raw.pgconn.send_query(text)
            answers: list[PGresult] = await raw.wait(generators.execute(raw.pgconn))
        return answers[-1]

    async def _script(self, text: str, *, committing: bool = False) -> int:
        try:
            answer = await self._exchange(text.encode())
        except psycopg.Error as error:
            self.broken = True
            raise translated(error, committing=committing) from error
        return self._rows(answer, committing)

    async def _fetch(self, call: Call) -> list[tuple[Any, ...]]:
        try:
            cursor = await self.raw.execute(call.query.packed.encode(), _values(call))
            return await cursor.fetchall() if cursor.description is not None else []
        except psycopg.Error as error:
            self.broken = self.raw.closed or _is_stale(error)
            raise translated(error) from error

    async def execute_text(self, text: str) -> None:
        """Plain SQL, for migrations."""
        await self._script(text)

    async def restore(self) -> Any:
        if self._is_at_work():
            await self._let_go()
        return await self._script(postgresql.RESTORE)

    async def rollback(self) -> None:
        if self._is_at_work():
            with suppress(errors.OnceboxError):
                await self._let_go()
        try:
            if self.in_transaction():
                await self._script("ROLLBACK")
        except errors.OnceboxError:
            self.broken = True

    async def _handled_late(self) -> Any:
        await self._let_go()
        return self.handled()

    async def _let_go(self) -> Any:
        ends = time.monotonic() + LET_GO_SECONDS
        while time.monotonic() < ends:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._is_at_work():
                return
        with suppress(psycopg.Error, TimeoutError):
            await self.raw.cancel_safe(timeout=5)
            async with asyncio.timeout(TOLD_SECONDS), self.raw.lock:
                pass
        raise self._close_at_work()

    async def listen(self, channel: str, ring: Callable[[], None]) -> None:
        """Ring for every NOTIFY, until cancelled or the connection is lost."""
        await self.raw.execute(f"LISTEN {channel}".encode())
        async for _ in self.raw.notifies():
            ring()

    async def close(self) -> None:
        await self.raw.close()


def unreachable(error: psycopg.Error) -> errors.OnceboxError:
    """Why no connection could be had, without the connection string."""
    text = str(error)
    if "password" in text or error.sqlstate in ("28P01", "28000"):
        return errors.DatabaseUnavailable(
            "the database refused the user name or password; check the URL's user, its password and pg_hba.conf"
        )
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return errors.DatabaseUnavailable(f"the database can't be reached: {first}")
