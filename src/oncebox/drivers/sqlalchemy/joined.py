"""What a handler gets, and what it may do with it: everything but end the transaction.

Its commit is refused on the spot, and after its rollback no statement runs any more. Listeners see
to that; connections that the app opens for itself never meet them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, event, exc

from oncebox import errors
from oncebox.core.queries import Queries
from oncebox.drivers.session import MATTERS, Settings
from oncebox.drivers.sqlalchemy import outcomes
from oncebox.drivers.sqlalchemy.given import Given
from oncebox.drivers.sqlalchemy.held import Held
from oncebox.drivers.sqlite import undoes


class Joined(Held):
    """Hands out sessions and connections that are joined to the open transaction."""

    def __init__(self, given: Given, queries: Queries, settings: Settings, options: dict[str, Any]) -> None:
        super().__init__(given, queries, settings, options)
        self._session: Any = None
        """The running handler's, if it asked for one."""
        event.listen(self._engine, "commit", self._on_commit)
        event.listen(self._engine, "rollback", self._on_rollback)
        event.listen(self._engine, "release_savepoint", self._on_release)
        event.listen(self._engine, "before_cursor_execute", self._on_statement)
        self._failed = False
        """SQLite undoes a statement that failed and goes on: nothing else tells that its error was swallowed."""
        if given.engine.dialect.name == "sqlite":
            event.listen(self._engine, "handle_error", self._on_error)
            event.listen(self._engine, "rollback_savepoint", self._on_undone)

    def handle(self, kind: str | None = None) -> Any:
        """What the handler works with: a session for this call alone, the connection, or nothing."""
        self._ours = self._failed = False
        if kind is None:
            return None
        if kind.endswith("connection"):
            return self.given.connection(self._open)
        session = self.given.session(self._open)
        self._session = getattr(session, "sync_session", session)
        self._sessions.append(self._session)
        event.listen(self._session, "after_begin", self._on_session)
        self._session.connection()  # joined at once, so that a commit of nothing is noticed too
        return session

    def handled(self) -> Any:
        """The handler has returned: flush its session, and look whether its transaction is whole.

        Raises what the flush raises, TransactionEnded or TransactionAborted.
        """
        self._settle()

    def _settle(self) -> None:
        if self._session is not None:
            if not self._session.is_active:
                raise outcomes.swallowed()
            self._session.flush()
        self._ours, self._session = True, None
        self._check_root()
        if self._failed:
            raise outcomes.swallowed()
        if self._open.invalidated:
            raise outcomes.cut_off()
        nested = self._open.get_nested_transaction()
        while nested is not None and nested is not self._nested and nested.is_active:
            nested.commit()  # a savepoint that the handler set and forgot
            nested = self._open.get_nested_transaction()
        if nested is not self._nested or (nested is not None and not nested.is_active):
            raise outcomes.ended()
        self._check_open()
        if self._is_aborted():
            raise outcomes.swallowed()

    def _check_root(self) -> None:
        """Raise TransactionEnded unless the transaction that began is the one that is open."""
        connection = self._open
        root = connection.get_transaction()
        if self._ended or connection.closed or root is None or root is not self._root:
            raise outcomes.ended()
        if not root.is_active and not connection.invalidated:
            raise outcomes.ended()

    def explain(self, error: BaseException) -> BaseException:
        """What a handler's error means to its transaction: the flow's name for it, or the error itself."""
        links = list(outcomes.chain(error))
        for link in links:
            if isinstance(link, exc.StatementError):
                link.hide_parameters = True  # they may quote the payload
        if self._is_gone() and any(map(outcomes.is_loss, links)):
            return self._lost(False)
        if isinstance(error, exc.InvalidRequestError) and self._ended:
            is_stuck = self._session is not None and not self._session.is_active
            return outcomes.swallowed() if is_stuck else outcomes.ended()
        cause = outcomes.drivers_own(error)
        if isinstance(cause, errors.OnceboxError) or not outcomes.is_told(cause):
            return error
        named = self._named(cause, False)
        is_ours = isinstance(named, MATTERS) and not isinstance(named, errors.DatabaseUnavailable)
        return named if is_ours else error

    def _is_gone(self) -> bool:
        return not self._is_usable() or outcomes.is_closed(self._driver)

    def _forget(self) -> None:
        """The handler failed: what its session has pending is never flushed."""
        self._ours, self._session = True, None

    def _on_commit(self, connection: Connection) -> None:
        if not self._ours and connection is self.raw:
            self._undo()
            raise outcomes.refused()

    def _on_rollback(self, connection: Connection) -> None:
        if not self._ours and connection is self.raw:
            self._undo()

    def _on_release(self, connection: Connection, name: str, context: object) -> None:
        is_batchs = self._nested is not None and name == self._nested._savepoint
        if is_batchs and not self._ours and connection is self.raw:
            raise outcomes.refused()

    def _on_error(self, context: Any) -> None:
        if not self._ours and context.connection is self.raw:
            self._failed = True

    def _on_undone(self, connection: Connection, name: str, context: object) -> None:
        if not self._ours and connection is self.raw:
            self._failed = False

    def _on_statement(self, connection: Connection, cursor: object, statement: str, *_: object) -> None:
        if not self._ours and connection is self.raw:
            if self._failed and undoes(statement):
                self._failed = False
            if self._ended:
                raise outcomes.ended()
            self._check_open()

    def _on_session(self, session: object, transaction: object, connection: Connection) -> None:
        if connection is not self.raw:
            raise errors.ConfigError(
                "this session takes another connection than the claim's (binds, or a get_bind() of its own), so "
                "its work would not be committed with the claim: give the app a sessionmaker of one engine"
            )

    def _undo(self) -> None:
        """End the transaction for good, now: SQLAlchemy gives a connection whose commit failed back to
        the pool as it is, and the next one to get it would find the claim on it."""
        self._ended = self._ours = True
        try:
            if not self._open.invalidated:
                self._open.connection.rollback()
                self._restore_driver()
        except Exception:
            self._throw_away()
        finally:
            self._ours = False
