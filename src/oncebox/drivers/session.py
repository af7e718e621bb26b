"""What a driver gives the runtime: a held connection that performs steps.

Each method answers at once on a blocking connection and returns an awaitable on an async one;
the runners know the difference, the flows don't.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from oncebox import errors
from oncebox.core import steps
from oncebox.core.queries import Queries
from oncebox.core.steps import Begin, Call, Commit, Execute
from oncebox.engines import postgresql


class Session(Protocol):
    """A held connection. `raw` is what a handler gets as its connection."""

    queries: Queries

    @property
    def raw(self) -> Any: ...
    @property
    def broken(self) -> bool: ...
    def begin(self, step: Begin) -> Any: ...
    def execute(self, step: Execute) -> Any: ...
    def execute_text(self, text: str) -> Any: ...
    def fetch(self, call: Call) -> Any: ...
    def save(self, first: bool) -> Any: ...
    def restore(self) -> Any: ...
    def commit(self, step: Commit) -> Any: ...
    def rollback(self) -> Any: ...
    def side(self, call: Call) -> Any: ...
    def vouch(self, call: Call) -> Any: ...
    def handle(self, kind: str | None = None) -> Any: ...
    def handled(self) -> Any: ...
    def explain(self, error: BaseException) -> BaseException: ...
    def cancel(self) -> None: ...
    def close(self) -> Any: ...


def database_steps(session: Session) -> dict[type[steps.Step], Callable[[Any], Any]]:
    """How a session performs each of the steps that are the database's."""
    return {
        steps.Begin: session.begin,
        steps.Execute: session.execute,
        steps.Script: lambda step: session.execute_text(step.text),
        steps.Fetch: lambda step: session.fetch(step.call),
        steps.Save: lambda step: session.save(not step.again),
        steps.Restore: lambda step: session.restore(),
        steps.Commit: session.commit,
        steps.Rollback: lambda step: session.rollback(),
    }


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What every runtime connection is opened with."""

    lock_timeout_seconds: float = 10.0
    idle_timeout_seconds: float = 46.0
    """Ends a transaction whose host vanished; above the handler's timeout."""
    handlers: bool = False
    """Handlers run on it: on SQLAlchemy, a connection of the app's own pool."""
    side: bool = False
    """The second connection: small writes that need not wait for the disk."""


_FINE = errors.OnceboxError("a handler returned")
MATTERS = (errors.Conflict, errors.LockBusy, errors.DatabaseUnavailable, errors.TransactionEnded)
"""Errors that say something about the transaction, not only about the handler."""


class PostgresSession:
    """The text of every step on PostgreSQL; a driver adds `_script`, `_fetch` and `close`."""

    queries: Queries
    raw: Any
    broken = False
    pooled = False
    """Behind a transaction pooler: nothing may be set on the session, it is shared."""

    claims: postgresql.Claims | None = None
    """The claims that this session has prepared."""
    check = postgresql.CHECK
    """How a transaction is closed."""
    settings: Settings

    @property
    def _begin(self) -> str:
        return postgresql.BEGIN_EXPLICIT if self.pooled else "BEGIN"

    def _script(self, text: str, *, committing: bool = False) -> Any:
        """Send one message; the number of rows its last statement changed."""
        raise NotImplementedError

    def _fetch(self, call: Call) -> Any:
        """Rows of one statement with parameters."""
        raise NotImplementedError

    def begin(self, step: Begin) -> Any:
        step = self._bounded(step)
        learning = postgresql.learn(step, self.claims)
        return self._script(learning + postgresql.begin(step, self.claims, self._begin))

    def execute(self, step: Execute) -> Any:
        return self._script(postgresql.script(step.calls))

    def fetch(self, call: Call) -> Any:
        return self._fetch(call)

    side = fetch

    def vouch(self, call: Call) -> Any:
        if self.in_transaction():
            raise RuntimeError("a flush inside a transaction flushes nothing")
        return self._fetch(call)

    def in_transaction(self) -> bool:
        """Whether a transaction is open, as the client library knows it."""
        raise NotImplementedError

    def save(self, first: bool) -> Any:
        return self._script(postgresql.SAVE_FIRST if first else postgresql.SAVE)

    def restore(self) -> Any:
        return self._script(postgresql.RESTORE)

    def commit(self, step: Commit) -> Any:
        if self.pooled and step.then is not None:
            step = msgspec.structs.replace(step, then=self._bounded(step.then))
        if self.claims is not None:
            self.claims.latest = None  # what was opened came through
        # Whoever shares a session through a pooler may have given it a role of theirs.
        first = "" if self.pooled else postgresql.OWN_ROLE
        return self._script(postgresql.commit(step, self.claims, self.check, first), committing=True)

    def _failed(self, sqlstate: str | None) -> None:
        """A message came back with an error: what it was to prepare may not be there, or somebody deallocated it."""
        if sqlstate == "26000":
            self.claims = None
        elif self.claims is not None:
            self.claims.doubt()

    def handle(self, kind: str | None = None) -> Any:
        """What the handler works with; `kind` is what it annotated."""
        return self.raw

    def handled(self) -> Any:
        """The handler has returned. Its swallowed error is its own, not its neighbour's in a batch; and
        after its own ROLLBACK its neighbours' statements would commit one by one, and then run again.
        A connection that it closed must not look like a COMMIT whose reply was lost."""
        gone = self._translated(_FINE)
        if gone is not _FINE:
            raise gone
        if self.failed():
            raise postgresql.translate("25P02")
        if not self.in_transaction():
            raise errors.TransactionEnded(
                "the handler ended the transaction by itself (COMMIT or ROLLBACK); the runtime does that"
            )

    def failed(self) -> bool:
        """Whether the open transaction can only be rolled back, as the client library knows it."""
        return False

    def cancel(self) -> None:
        """Interrupt the running statement, from another thread."""

    def explain(self, error: BaseException) -> BaseException:
        """What a handler's error means to its transaction: the flow's name for it, or the error itself."""
        translated = self._translated(error)
        return translated if isinstance(translated, MATTERS) else error

    def _translated(self, error: BaseException) -> BaseException:
        """The driver's error, translated; anything else as it is."""
        raise NotImplementedError

    def _bounded(self, step: Begin) -> Begin:
        """A pooled session has no settings of its own, so the lock bound travels with BEGIN."""
        if self.pooled and not step.lock_ms:
            return msgspec.structs.replace(step, lock_ms=int(self.settings.lock_timeout_seconds * 1000))
        return step

    def opening_statements(self) -> str:
        """Settings that free a vanished host's locks, and the side connection's haste."""
        if self.pooled:
            return ""
        idle = int(self.settings.idle_timeout_seconds * 1000)
        statements = [
            "SET default_transaction_isolation = 'read committed'",
            "SET default_transaction_read_only = off",
            "SET tcp_keepalives_idle = 15",
            "SET tcp_keepalives_interval = 5",
            "SET tcp_keepalives_count = 3",
            "SET tcp_user_timeout = 30000",
            "SET client_connection_check_interval = 10000",
            f"SET idle_in_transaction_session_timeout = {idle}",
            f"SET lock_timeout = {int(self.settings.lock_timeout_seconds * 1000)}",
        ]
        if self.settings.side:
            statements.append("SET synchronous_commit = off")
        return "; ".join(statements)
