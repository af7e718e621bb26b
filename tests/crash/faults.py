"""Faults by step number: every step of every flow passes through here, and one of them goes wrong.

`Steps` counts across all performers of a worker, so that "step 7" means the same in a dry run and
in the run that is broken there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

import asyncpg
import msgspec
import psycopg

from oncebox import errors
from oncebox.core import steps
from oncebox.core.run import Perform
from oncebox.core.steps import Step

STATEMENTS = (
    steps.Begin, steps.Execute, steps.Script, steps.Fetch, steps.Save, steps.Restore, steps.Commit, steps.Side,
    steps.Flush,
)  # fmt: skip
"""Steps that the database answers, and may refuse."""


class Fault(msgspec.Struct, frozen=True):
    """What goes wrong, and at which step."""

    step: int
    when: str
    what: str

    def __str__(self) -> str:
        return f"{self.what} {self.when} step {self.step}"


class Stuck(BaseException):
    """The worker took more steps or time than any recovery needs; not to be caught by it."""


class Ended(BaseException):
    """The database has been away for long enough: this worker's process is given up."""


HANGS_SECONDS = 9.0
"""What takes longer hangs. Less than a wait for a lock may take, and much more than a busy machine makes of it."""
AWAY_STEPS = 6
"""So many steps meet a database that is gone before their worker is ended."""


def moments(what: str, step: Step, *, is_last: bool) -> tuple[str, ...]:
    """When this fault can happen to this step.

    A kill after one step is the kill before the next, so only the last step has an `after`. A refused
    statement fails once it has been sent, but a commit that fails did not happen, unless what fails is
    the claim of the next message, which travels with it.
    """
    statement = isinstance(step, STATEMENTS)
    match what:
        case "kill":
            return ("before", "after") if is_last else ("before",)
        case "cancel":
            waits = statement or isinstance(step, (steps.Handle, steps.Publish))
            return ("before", "after") if waits else ("before",)
        case "cut":
            return ("before", "after") if statement else ("before",) if isinstance(step, steps.Handle) else ()
        case "server":
            return ("before", "after") if statement or isinstance(step, steps.Handle) else ()
        case "away":
            return ("before", "after") if isinstance(step, steps.Commit) else ("before",) if statement else ()
        case "error" if isinstance(step, steps.Publish):
            return ("before", "after")
        case "error" | "conflict" | "busy":
            if isinstance(step, steps.Commit) and step.then is None:
                return ("before",)
            return ("after",) if statement or isinstance(step, steps.Handle) else ()
    raise ValueError(what)


class Steps:
    """Counts steps, remembers their names, and lets the fault happen at its number, once."""

    def __init__(
        self, fault: Fault | None = None, *, most: int = 2000, seconds: float = 20, statements: bool = False
    ) -> None:
        self.fault = fault
        self._statements = statements
        """Count only what the database is asked."""
        self._count = 0
        self.happened = False
        self.kinds: list[Step] = []
        self._most = most
        self._deadline = time.monotonic() + seconds
        self._away = 0
        """Steps since the database went away."""
        self.crash_server: Callable[[], None] = lambda: None
        """What `server` calls: the database's own death."""

    @property
    def is_over(self) -> bool:
        """The process was given up, with whatever it had in hand."""
        return self._away > AWAY_STEPS

    @property
    def trace(self) -> str:
        """The steps by name, as they came."""
        return " ".join(type(step).__name__ for step in self.kinds)

    def numbered(self, perform: Perform, sever: Callable[[Step], None], spoil: Callable[[], Any]) -> Perform:
        """`perform`, with this count and fault around it. `sever` loses a step's connection, `spoil`
        leaves its transaction as a failed statement does."""

        def blocking(step: Step) -> Any:
            number = self._next(step)
            if self._is_due(number, "before"):
                self._strike(step, sever, spoil)
            try:
                self._check_away(step)
                reply = perform(step)
            finally:
                if self._is_due(number, "after"):
                    self._strike(step, sever, spoil)
            self._lose_reply(number, step)
            return reply

        async def awaiting(step: Step, number: int) -> Any:
            if self._is_due(number, "before"):
                # A cancellation arrives where the step first waits; one that never waits is not stopped.
                await _finished(self._strike(step, sever, spoil))
            waits = False
            try:
                self._check_away(step)
                reply = perform(step)
                if waits := isawaitable(reply):
                    reply = await reply
            finally:
                if self._is_due(number, "after"):
                    await _finished(self._strike(step, sever, spoil))
                    if waits:
                        await asyncio.sleep(0)  # it was done, and the cancellation came with the reply
            self._lose_reply(number, step)
            return reply

        def either(step: Step) -> Any:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return blocking(step)
            return awaiting(step, self._next(step))

        return either

    def _next(self, step: Step) -> int:
        self.kinds.append(step)
        if len(self.kinds) > self._most or time.monotonic() > self._deadline:
            raise Stuck(f"{len(self.kinds)} steps; the last ones: {self.trace[-400:]}")
        if self._statements and not isinstance(step, STATEMENTS):
            return 0
        self._count += 1
        return self._count

    def _check_away(self, step: Step) -> None:
        """Whether the database is gone for good. A rollback passes: the server rolls back by itself."""
        if not self._away:
            return
        self._away += 1
        if self._away > AWAY_STEPS:
            raise Ended
        if isinstance(step, STATEMENTS):
            raise errors.DatabaseUnavailable("the database is away")

    def _is_due(self, number: int, when: str) -> bool:
        return self.fault is not None and self.fault.step == number and self.fault.when == when

    def _strike(self, step: Step, sever: Callable[[Step], None], spoil: Callable[[], Any]) -> Any:
        assert self.fault is not None
        self.happened = True
        match self.fault.what:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            case "cut":
                sever(step)
            case "server":
                self.crash_server()
            case "away":
                self._away = 1
            case "cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            case _:
                return _spoiled(spoil, _refusal(self.fault.what))
        return None

    def _lose_reply(self, number: int, step: Step) -> None:
        lost = self.fault is not None and self.fault.what in ("cut", "away")
        cut = lost and self._is_due(number, "after")
        if cut and isinstance(step, STATEMENTS):
            unknown = isinstance(step, steps.Commit)
            raise (errors.CommitUnknown if unknown else errors.DatabaseUnavailable)("its reply never came")


def _refusal(what: str) -> errors.DatabaseError:
    kinds = {"error": errors.DatabaseError, "conflict": errors.Conflict, "busy": errors.LockBusy}
    return kinds[what](f"injected {what}")


def _spoiled(spoil: Callable[[], Any], refusal: errors.DatabaseError) -> Any:
    async def later(reply: Awaitable[Any]) -> None:
        await reply
        raise refusal

    reply = spoil()
    if isawaitable(reply):
        return later(reply)
    raise refusal


async def _finished(reply: Any) -> Any:
    return await reply if isawaitable(reply) else reply


def sever(session: Any) -> None:
    """Lose a connection as a killed process or a reset does: no goodbye, the server sees the end."""
    session.severed = True
    raw = getattr(session, "raw", None)
    if isinstance(raw, (psycopg.Connection, psycopg.AsyncConnection)):
        with socket.socket(fileno=os.dup(raw.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    elif raw is not None and hasattr(raw, "_transport"):
        raw._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def spoil(session: Any) -> Any:
    """Leave a PostgreSQL transaction aborted, as the statement that failed would have."""
    raw = session.raw
    if isinstance(raw, psycopg.Connection):
        try:
            if session.in_transaction():
                raw.execute("SELECT 1/0")
        except psycopg.Error:
            return None
    elif isinstance(raw, psycopg.AsyncConnection) or hasattr(raw, "_transport"):
        return _spoil_async(session)
    return None


async def _spoil_async(session: Any) -> None:
    if session.in_transaction():
        try:
            await session.raw.execute("SELECT 1/0")
        except (psycopg.Error, asyncpg.PostgresError):
            return
