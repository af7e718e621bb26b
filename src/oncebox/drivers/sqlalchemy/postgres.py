"""PostgreSQL through SQLAlchemy, over psycopg or asyncpg.

Connections are the app's, so nothing is set on their sessions: what a runtime transaction needs is
set locally, by the one statement that opens it, and is gone with it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine

from oncebox import errors
from oncebox.core.steps import Begin, Call, Commit
from oncebox.drivers.sqlalchemy import outcomes
from oncebox.drivers.sqlalchemy.awaiting import Awaiting
from oncebox.drivers.sqlalchemy.given import Given, autocommit
from oncebox.drivers.sqlalchemy.session import SqlAlchemySession
from oncebox.engines import postgresql
from oncebox.errors import ConfigError

_KEEPALIVE = {
    "tcp_keepalives_idle": 15,
    "tcp_keepalives_interval": 5,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": 30000,
    "client_connection_check_interval": 10000,
}
_CHECK = (
    "SELECT set_config('oncebox.finished', %s, true), "
    "1/(current_setting('oncebox.claim', true) IS NOT DISTINCT FROM %s)::int"
)
_IDLE, _IN_ERROR = 0, 3
"""libpq's transaction states."""


def examine(engine: Engine) -> dict[str, Any]:
    """The execution options a runtime transaction needs on this engine; ConfigError if none would do."""
    with engine.connect() as connection:
        dbapi = connection.connection.dbapi_connection
        detect = getattr(engine.dialect, "detect_autocommit_setting", None)  # since 2.0.43
        if detect(dbapi) if detect is not None else getattr(dbapi, "autocommit", False):
            raise autocommit()
        isolation, read_only = connection.exec_driver_sql(
            "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')"
        ).one()
    if read_only == "on":
        raise ConfigError(
            "this engine's transactions are read only; an app writes its ledger with every effect"
        )
    return {} if isolation == "read committed" else {"isolation_level": "READ COMMITTED"}


class PostgresTransactions(SqlAlchemySession):
    """What a transaction on PostgreSQL opens and ends with."""

    def _enter(self, step: Begin) -> None:
        lock_ms = step.lock_ms or int(self.settings.lock_timeout_seconds * 1000)
        idle_ms = int(self.settings.idle_timeout_seconds * 1000)
        local: dict[str, Any] = {
            **_KEEPALIVE,
            "lock_timeout": lock_ms,
            "idle_in_transaction_session_timeout": idle_ms,
        }
        if step.lazy or self.settings.side:
            local["synchronous_commit"] = "off"
        settings = "".join(f", set_config('{name}', '{value}', true)" for name, value in local.items())
        self._send(f"SELECT set_config('oncebox.claim', {self._mark}, true){settings}", (step.token,))

    def _enter_alone(self) -> None:
        self._enter(Begin(token=""))

    def _leave(self, step: Commit) -> None:
        # Any commit or rollback erases the token, and then this divides by zero. An aborted
        # transaction fails here too, whereas COMMIT would answer it politely.
        if self._is_numbered:
            self._send(_CHECK.replace("%s", "$1"), (step.token,))
        else:
            self._send(_CHECK, (step.token, step.token))

    @property
    def _is_numbered(self) -> bool:
        return self.given.driver == "asyncpg"

    @property
    def _mark(self) -> str:
        return "$1" if self._is_numbered else "%s"

    def _check_open(self) -> None:
        # After a COMMIT or ROLLBACK that SQLAlchemy did not see, the next statement would, over
        # asyncpg, be committed by itself.
        if self._is_numbered:
            is_open = self._driver.is_in_transaction()
        else:
            is_open = self._driver.info.transaction_status != _IDLE
        if not is_open:
            raise outcomes.ended()

    def _is_aborted(self) -> bool:
        # asyncpg does not tell; there the check before COMMIT finds out.
        return not self._is_numbered and self._driver.info.transaction_status == _IN_ERROR

    def _perform(self, call: Call) -> Any:
        params = postgresql.parameters(call)
        query = call.query
        if self._is_numbered:
            return self._send(query.numbered, tuple(params[name] for name in query.names))
        return self._send(query.positional, tuple(params[name] for name in query.order))

    def _rows(self, call: Call) -> list[tuple[Any, ...]]:
        result = self._perform(call)
        return [tuple(row) for row in result] if result.returns_rows else []

    def _changed(self, call: Call) -> int:
        if call.query.is_script:
            self._script(postgresql.text(call))
            return 0
        result = self._perform(call)
        changed = int(result.rowcount)
        result.close()
        return changed

    def _script(self, text: str) -> None:
        if self.given.driver == "asyncpg":
            # The simple protocol takes several statements at once; SQLAlchemy prepares, which takes
            # one. Its own statement has opened the transaction by now, so this one is inside.
            self._open.connection.dbapi_connection.run_async(  # type: ignore[union-attr]
                lambda connection: connection.execute(text)
            )
        else:
            self._open.exec_driver_sql(text, execution_options={"no_parameters": True}).close()

    def _named(self, error: BaseException, committing: bool) -> errors.OnceboxError:
        sqlstate = getattr(error, "sqlstate", None)
        if sqlstate is None and not committing:
            return errors.DatabaseError(f"the driver refused ({type(error).__name__})")
        return postgresql.outdated(error) or postgresql.translate(sqlstate, committing=committing)

    def _lost(self, committing: bool) -> errors.OnceboxError:
        return postgresql.translate(None, committing=committing)

    def _unreachable(self, error: BaseException) -> errors.OnceboxError:
        return unreachable(self.given, error)

    def cancel(self) -> None:
        driver = self._driver
        if driver is not None and hasattr(driver, "cancel_safe"):
            try:
                driver.cancel_safe(timeout=5)
            except driver.Error:
                return  # it is gone, which the handler's statement will find out


class AsyncPostgresTransactions(Awaiting, PostgresTransactions):
    """The same under an event loop."""


def unreachable(given: Given, error: BaseException) -> errors.OnceboxError:
    """Why the engine could not connect, without its connection string."""
    cause = getattr(error, "orig", None) or error
    if given.driver == "asyncpg":
        from oncebox.drivers import asyncpg

        return asyncpg.unreachable(cause)
    from psycopg import Error

    from oncebox.drivers import psycopg

    if isinstance(cause, Error):
        return psycopg.unreachable(cause)
    return errors.DatabaseUnavailable(f"the database can't be reached ({type(cause).__name__})")
