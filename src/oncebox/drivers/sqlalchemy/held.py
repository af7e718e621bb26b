"""One pooled connection of the app's engine for the length of one transaction.

Nothing is held between transactions, so idle workers leave the pool to the app. Our statements go
through `Connection.exec_driver_sql` only: through the raw driver connection a claim survives a
rollback, and `Session.execute` would flush the handler's objects first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, CursorResult, exc

from oncebox import errors
from oncebox.core.queries import Queries
from oncebox.core.steps import Begin, Call, Commit
from oncebox.drivers.session import Settings
from oncebox.drivers.sqlalchemy import outcomes
from oncebox.drivers.sqlalchemy.given import Given
from oncebox.drivers.sqlalchemy.turn import Turn

_SEND: dict[str, Any] = {"preserve_rowcount": True}


class Held:
    """Takes a connection from the pool, sends statements, gives it back as it came."""

    raw: Any = None
    """The open transaction's connection."""
    broken = False
    """Never: each transaction has a connection of its own, and a lost one does not go back to the pool."""
    turn: Turn | None = None
    """Whose turn it is to write, where the database has one writer."""

    def __init__(self, given: Given, queries: Queries, settings: Settings, options: dict[str, Any]) -> None:
        self.given = given
        self.queries = queries
        self.settings = settings
        # An engine of our own that shares the app's pool: what listens to it does not hear the app.
        self._engine = given.engine.execution_options(**options)
        self._root: Any = None
        self._nested: Any = None
        self._driver: Any = None
        self._sessions: list[Any] = []
        self._ours = True
        """Whether what happens on the connection is our doing, and not a handler's."""
        self._ended = False
        """Whether a handler has ended the transaction; it is rolled back then."""

    # What a dialect adds

    def _enter(self, step: Begin) -> None:
        """Make the transaction that has just begun the step's."""
        raise NotImplementedError

    def _enter_alone(self) -> None:
        """The same for a transaction of one statement."""

    def _leave(self, step: Commit) -> None:
        """Raise unless COMMIT, sent next, would commit exactly what was claimed."""
        raise NotImplementedError

    def _check_open(self) -> None:
        """Raise unless the driver knows its connection to be in a transaction; costs nothing."""
        raise NotImplementedError

    def _is_aborted(self) -> bool:
        """Whether the driver knows that nothing can be committed any more; costs nothing."""
        return False

    def _restore_driver(self) -> None:
        """Leave the driver's connection, which is in no transaction, as the pool gave it."""

    def _rows(self, call: Call) -> list[tuple[Any, ...]]:
        """What a statement returns."""
        raise NotImplementedError

    def _changed(self, call: Call) -> int:
        """How many rows a statement changed."""
        raise NotImplementedError

    def _script(self, text: str) -> None:
        """Several statements, for migrations."""
        raise NotImplementedError

    def _named(self, error: BaseException, committing: bool) -> errors.OnceboxError:
        """The flow's name for a driver's error."""
        raise NotImplementedError

    def _lost(self, committing: bool) -> errors.OnceboxError:
        """The connection went away."""
        raise NotImplementedError

    def _unreachable(self, error: BaseException) -> errors.OnceboxError:
        """Why there is no connection."""
        raise NotImplementedError

    # Taking, sending, giving back

    @property
    def _open(self) -> Connection:
        connection: Connection = self.raw
        assert connection is not None, "no transaction is open"
        return connection

    def _connect(self) -> None:
        assert self.raw is None, "a transaction is open already"
        try:
            self.raw = self._engine.connect()
        except exc.TimeoutError as error:
            raise outcomes.pool_is_empty() from error
        except Exception as error:
            if not outcomes.is_drivers(error):
                raise
            raise self._unreachable(error) from None
        if self._open.in_transaction():
            self._open.rollback()  # a listener of the app's left one open
        self._driver = self._open.connection.driver_connection

    def _send(self, text: str, params: Any = None) -> CursorResult[Any]:
        return self._open.exec_driver_sql(text, params, execution_options=_SEND)

    def _calls(self, calls: tuple[Call, ...]) -> int:
        changed = 0
        for call in calls:
            changed = self._changed(call)
        return changed

    @contextmanager
    def _translating(self, *, committing: bool = False) -> Iterator[None]:
        """Raise errors under the flow's names."""
        try:
            yield
        except exc.DBAPIError as error:
            error.hide_parameters = True  # they hold the payload
            if error.connection_invalidated:
                raise self._lost(committing) from error
            raise self._named(error.orig or error, committing) from error
        except exc.InvalidRequestError as error:
            raise outcomes.ended() from error
        except OSError as error:
            self._throw_away()
            raise self._lost(committing) from error

    def _rollback(self) -> None:
        """Never raises for a connection that is gone; one that can't be rolled back is thrown away."""
        self._ours = True
        try:
            if self._is_usable():
                if self._root is not None and self._root.is_active:
                    self._root.rollback()
                else:
                    # A COMMIT that failed, or was refused: SQLAlchemy would not send another word.
                    self._open.connection.rollback()
        except BaseException as error:
            self._throw_away()
            if not isinstance(error, Exception):
                raise
        finally:
            self._release()

    def _release(self) -> None:
        """Give the connection back to the pool, in no transaction and as it came."""
        sessions, self._sessions = self._sessions, []
        try:
            if self._is_usable() and not self._ended:
                self._restore_driver()
            if self.raw is not None:
                self.raw.close()
            for session in sessions:
                session.close()
        except BaseException as error:
            self._throw_away()
            if not isinstance(error, Exception):
                raise
        finally:
            self.raw = self._root = self._nested = self._driver = None
            if self.turn is not None:
                self.turn.release()

    def _throw_away(self) -> None:
        if self.raw is not None and not self.raw.closed:
            self.raw.invalidate()
            self.raw.close()

    def _is_usable(self) -> bool:
        return self.raw is not None and not self.raw.closed and not self.raw.invalidated
