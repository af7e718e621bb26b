"""What every adapter shares: steps to statements, statements in a driver's style, errors that matter.

Driver errors are the user's: their transaction, their retry. They pass unchanged, save the few that
say something about the guard itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ClassVar

from oncebox import errors
from oncebox.core.guard import Ask, Held, Hold, Join, Look, Release, View
from oncebox.core.queries import Queries
from oncebox.core.run import is_awaited
from oncebox.core.steps import Call, Execute, Fetch, Step
from oncebox.engines import postgresql
from oncebox.inbox.adapters import savepoints
from oncebox.message import MessageKey

Statement = tuple[str, Any]
"""Text and parameters, in the driver's style; None for no parameters."""
Style = Callable[[Call, dict[str, Any]], Statement]

ASK = "SELECT current_setting('oncebox.guard', true)"


def numbered(call: Call, params: dict[str, Any]) -> Statement:
    """$1, $2: asyncpg."""
    return call.query.numbered, tuple(params[name] for name in call.query.names)


def positional(call: Call, params: dict[str, Any]) -> Statement:
    """%s: psycopg, psycopg2, Django."""
    return call.query.positional, tuple(params[name] for name in call.query.order)


def named(call: Call, params: dict[str, Any]) -> Statement:
    """:name, and a dictionary: sqlite3."""
    return call.query.text, {name: params[name] for name in call.query.names}


def statements(calls: tuple[Call, ...], style: Style) -> list[Statement]:
    """What to send for these calls: one statement each, or one per row where a query says so."""
    found: list[Statement] = []
    for call in calls:
        if call.query.each:
            found += [style(call, {**call.params, **row}) for row in call.params["rows"]]
        else:
            found.append(style(call, postgresql.parameters(call)))
    return found


class Adapter:
    """One handle for the length of one claim. A subclass adds `join`, `view` and `send`.

    Methods answer at once, or return an awaitable where `awaits` is true.
    """

    awaits: ClassVar[bool] = False
    dialect = "postgresql"
    style: Style
    raw: Any
    """The driver's own connection: looked at, never written to where a framework stands before it."""
    queries: Queries
    holds: MessageKey | None = None

    def perform(self, step: Step) -> Any:
        """Do what a flow asks."""
        hand = _HANDS.get(type(step))
        if hand is None:
            raise TypeError(f"no guard step: {type(step).__name__}")
        return hand(self, step)

    def join(self, schema: str) -> Any:
        """Reach the transaction and reply with its database's queries; refuse autocommit."""
        raise NotImplementedError

    def view(self) -> View:
        """The transaction as the client library knows it."""
        raise NotImplementedError

    def send(self, sent: list[Statement], *, fetch: bool = False) -> Any:
        """Perform statements; reply with the rows of all of them if they are to be fetched."""
        raise NotImplementedError

    def fetch(self, call: Call) -> Any:
        """The rows of one call."""
        return self.send(statements((call,), self.style), fetch=True)

    def hold(self, step: Hold) -> Any:
        """Note that a key was claimed, and set its savepoint where it has one."""
        self.opened(step.key)
        return savepoints.hold(self, step) if step.savepoint else None

    def opened(self, key: MessageKey) -> None:
        """The transaction is open from here on, and holds `key`."""

    def held(self, step: Held) -> Any:
        """Whether a row that was found is this transaction's own."""
        ours: Any = step.ours
        if ours is None and self.dialect == "sqlite":
            ours = savepoints.in_open_block(self, step)
            if not ours and savepoints.readable(self):
                lookup = statements((step.call,), named)[0]
                databases = self.send([("PRAGMA database_list", None)], fetch=True)
                ours = then(databases, lambda rows: savepoints.uncommitted(rows, lookup))
        return then(ours, lambda ours: bool(ours) and not self.settled(step.key))

    def settled(self, key: MessageKey) -> bool:
        """Whether the user's framework has committed this claim, although the database has not: tests
        that wrap everything in one transaction and play commits with savepoints."""
        return False

    def close(self) -> None:
        """The block is over, or there was none."""
        if self.holds is not None:
            savepoints.let_go(self)


_HANDS: dict[type[Step], Callable[[Adapter, Any], Any]] = {
    Look: lambda adapter, step: adapter.view(),
    Fetch: lambda adapter, step: adapter.fetch(step.call),
    Execute: lambda adapter, step: adapter.send(statements(step.calls, adapter.style)),
    Join: lambda adapter, step: adapter.join(step.schema),
    Hold: lambda adapter, step: adapter.hold(step),
    Held: lambda adapter, step: adapter.held(step),
    Release: lambda adapter, step: adapter.send([(f"RELEASE SAVEPOINT {step.savepoint}", None)]),
    Ask: lambda adapter, step: adapter.send([(ASK, None)], fetch=True),
}


def then(reply: Any, use: Callable[[Any], Any]) -> Any:
    """`use(reply)`, now or when it is there."""
    return _awaited(reply, use) if is_awaited(reply) else use(reply)


async def _awaited(reply: Awaitable[Any], use: Callable[[Any], Any]) -> Any:
    return use(await reply)


def autocommit(how: str) -> errors.AutocommitHandle:
    """There is no transaction, and this handle will not open one: the claim would be committed alone."""
    return errors.AutocommitHandle(
        f"this handle commits every statement by itself, so a claim would stay without its effect; {how}"
    )


class _Refusing:
    """Around statements: a driver's error that says something about the guard becomes the guard's."""

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        refused = _refusal(error) if isinstance(error, Exception) else None
        if refused is not None:
            raise refused from error


refusing = _Refusing()


def _refusal(error: Exception) -> errors.OnceboxError | None:
    """What a driver's error says about the guard, or None where it is the user's own affair."""
    for cause in (error, getattr(error, "orig", None), error.__cause__):
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        if state == "25P02":
            return errors.TransactionAborted(
                "this transaction has failed already, and the database will not commit it; roll back first"
            )
        if state in ("42P01", "3F000"):
            return _missing()
        if state == "42703":
            return outdated()
        if isinstance(cause, sqlite3.OperationalError):
            text = str(cause)
            if text.startswith("no such savepoint"):
                return errors.TransactionEnded("the savepoint that went with the claim is gone")
            if text.startswith("no such table"):
                return _missing()
            if "no such column" in text or "has no column" in text:
                return outdated()
    return None


def _missing() -> errors.SchemaMissing:
    return errors.SchemaMissing("no oncebox tables in this database; run: oncebox migrate")


def outdated() -> errors.SchemaOutdated:
    """The tables are there, and not as this oncebox has them."""
    return errors.SchemaOutdated("the oncebox tables are of another version; run: oncebox migrate")
