"""Bugs, put in on purpose: what a suite does not notice, it does not test.

Each is what somebody could write by mistake; `plant` puts one into the running process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from oncebox import errors
from oncebox.core import batch, inline, steps, stored
from oncebox.core.outcomes import Outcome, Status
from oncebox.core.queries import Query
from oncebox.core.steps import Step
from oncebox.drivers import sqlite
from oncebox.drivers.psycopg import PsycopgSession
from oncebox.drivers.session import PostgresSession
from oncebox.engines.queries import load
from oncebox.runtime.performer import Performer
from oncebox.runtime.workers import TaskWorker

Patch = Callable[[Any, str, Any], None]


def plant(name: str, patch: Patch = setattr) -> None:
    """Put the bug of that name into this process."""
    BUGS[name](patch)


def _around(patch: Patch, wrong: Callable[[Callable[[Step], Any], Performer, Step], Any]) -> None:
    """Have `wrong` perform the steps, with the right way at its disposal."""
    right = Performer.__call__

    def call(self: Performer, step: Step) -> Any:
        return wrong(lambda step: right(self, step), self, step)

    patch(Performer, "__call__", call)


def _ack_before_commit(patch: Patch) -> None:
    def wrong(right: Callable[[Step], Any], performer: Performer, step: Step) -> Any:
        if isinstance(step, steps.Settle) and step.item.waiter == "acked":
            return None
        reply = right(step)
        if isinstance(step, steps.Handle) and performer.work.policy.mode == "inline":
            for item in step.items:
                item.outcome = Outcome(Status.PROCESSED, reply)
                right(steps.Settle(item))
                item.waiter = "acked"
        return reply

    _around(patch, wrong)


def _no_fencing_token(patch: Patch) -> None:
    for dialect in ("sqlite", "postgresql"):
        queries = load(dialect, "oncebox")
        for name in ("still_leased", "finish_leased"):
            text = getattr(queries, name).text.replace("AND token = :token", "")
            if name == "still_leased":
                text = text.partition("SELECT")[1] + " :seq"
            object.__setattr__(queries, name, Query(name, text, False))


def _no_marker(patch: Patch) -> None:
    def wrong(right: Callable[[Step], Any], performer: Performer, step: Step) -> Any:
        if isinstance(step, steps.Side) and step.call.query.name in ("mark", "mark_inline"):
            return [(0,)] if step.call.query.name == "mark_inline" else []
        return right(step)

    _around(patch, wrong)


def _flush_skipped(patch: Patch) -> None:
    def vouch(work: Any, items: Any) -> Any:
        return
        yield

    for module in (inline, batch, stored):
        patch(module, "vouch", vouch)


def _flush_vouches_for_nothing(patch: Patch) -> None:
    def wrong(right: Callable[[Step], Any], performer: Performer, step: Step) -> Any:
        reply = right(step)
        if not isinstance(step, steps.Flush):
            return reply
        return _all_of(reply, len(step.keys)) if hasattr(reply, "__await__") else len(step.keys)

    async def _all_of(reply: Any, count: int) -> int:
        await reply
        return count

    _around(patch, wrong)


def _end_unchecked(patch: Patch) -> None:
    right = PsycopgSession.commit

    def commit(self: PsycopgSession, step: steps.Commit) -> Any:
        return self._script("COMMIT") if self.failed() else right(self, step)

    patch(PsycopgSession, "commit", commit)
    patch(PostgresSession, "handled", lambda self: None)


def _cancellation_acked(patch: Patch) -> None:
    right = TaskWorker.run

    async def run(self: TaskWorker) -> None:
        try:
            await right(self)
        except asyncio.CancelledError:
            for item in self.mailbox.active:
                item.outcome = item.outcome or Outcome(Status.PROCESSED)
                self.crew.settle(item)
            raise

    patch(TaskWorker, "run", run)


def _unknown_commit_acked(patch: Patch) -> None:
    def wrong(right: Callable[[Step], Any], performer: Performer, step: Step) -> Any:
        try:
            return right(step)
        except errors.CommitUnknown:
            return 0

    _around(patch, wrong)


def _claim_in_its_own_transaction(patch: Patch) -> None:
    right = sqlite.SqliteSession._begun

    def begun(self: sqlite.SqliteSession, step: steps.Begin) -> int:
        changed = right(self, step)
        if step.calls and step.calls[0].query.name == "claim":
            for statement in ("RELEASE oncebox_tx", "COMMIT", "BEGIN IMMEDIATE", "SAVEPOINT oncebox_tx"):
                self.raw.execute(statement)
        return changed

    patch(sqlite.SqliteSession, "_begun", begun)


def _attempt_not_counted(patch: Patch) -> None:
    def wrong(right: Callable[[Step], Any], performer: Performer, step: Step) -> Any:
        reply = right(step)
        is_count = isinstance(step, steps.Fetch) and step.call.query.name == "count_attempts"
        return [(0, 0)] if is_count else reply

    _around(patch, wrong)


BUGS: dict[str, Callable[[Patch], None]] = {
    "ack before commit": _ack_before_commit,
    "no fencing token": _no_fencing_token,
    "marker not written": _no_marker,
    "flush skipped": _flush_skipped,
    "flush vouches for nothing": _flush_vouches_for_nothing,
    "end of the transaction not checked": _end_unchecked,
    "cancellation acked": _cancellation_acked,
    "unknown commit acked": _unknown_commit_acked,
    "claim in its own transaction": _claim_in_its_own_transaction,
    "attempt not counted": _attempt_not_counted,
}
