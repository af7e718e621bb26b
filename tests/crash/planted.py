"""Bugs, put in on purpose: what a suite does not notice, it does not test.

Each is what somebody could write by mistake; `plant` puts one into the running process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from oncebox import errors
from oncebox.core import batch, inline, relay, steps, stored
from oncebox.core.outcomes import Outcome, Status
from oncebox.core.outgoing import publish_call
from oncebox.core.queries import Queries, Query
from oncebox.core.steps import Step
from oncebox.drivers import sqlite
from oncebox.drivers.psycopg import PsycopgSession
from oncebox.drivers.session import PostgresSession
from oncebox.engines.queries import load
from oncebox.runtime.performer import Performer
from oncebox.runtime.workers import TaskWorker

Patch = Callable[[Any, str, Any], None]


def put(target: Any, name: str, value: Any) -> None:
    """Set it, in a frozen value too."""
    object.__setattr__(target, name, value) if isinstance(target, Queries) else setattr(target, name, value)


def plant(name: str, patch: Patch = put) -> None:
    """Put the bug of that name into this process."""
    BUGS[name](patch)


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The bug of that name, as long as the block runs; none without a name."""
    undo: list[tuple[Any, str, Any]] = []

    def patch(target: Any, name: str, value: Any) -> None:
        undo.append((target, name, getattr(target, name)))
        put(target, name, value)

    if name:
        plant(name, patch)
    try:
        yield
    finally:
        for target, attribute, value in reversed(undo):
            put(target, attribute, value)


def _around(patch: Patch, wrong: Callable[[Callable[[Step], Any], Performer, Step], Any]) -> None:
    """Have `wrong` perform the steps, with the right way at its disposal."""
    right = Performer.__call__

    def call(self: Performer, step: Step) -> Any:
        return wrong(lambda step: right(self, step), self, step)

    patch(Performer, "__call__", call)


def _ack_before_commit(patch: Patch) -> None:
    def wrong(right: Callable[[Step], Any], performer: Performer, step: Step) -> Any:
        if isinstance(step, steps.Settle) and all(item.waiter == "acked" for item in step.items):
            return None
        reply = right(step)
        if isinstance(step, steps.Handle) and performer.work.policy.mode == "inline":
            for item in step.items:
                item.outcome = Outcome(Status.PROCESSED, reply)
                item.waiter = "acked"
            right(steps.Settle(step.items))
        return reply

    _around(patch, wrong)


def _no_fencing_token(patch: Patch) -> None:
    for dialect in ("sqlite", "postgresql"):
        queries = load(dialect, "oncebox")
        for name in ("still_leased", "finish_leased"):
            text = getattr(queries, name).text.replace("AND token = :token", "")
            if name == "still_leased":
                text = text.partition("SELECT")[1] + " :seq"
            patch(queries, name, Query(name, text, False))


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
            self.crew.settle(self.mailbox.active)
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


def _without(patch: Patch, *names: str) -> None:
    """These calls are left out of every commit."""

    def wrong(right: Callable[[Step], Any], performer: Performer, step: Step) -> Any:
        if isinstance(step, steps.Commit):
            calls = tuple(call for call in step.calls if call.query.name not in names)
            step = msgspec.structs.replace(step, calls=calls)
        return right(step)

    _around(patch, wrong)


def _finish_forgotten(patch: Patch) -> None:
    _without(patch, "finish")


def _call_not_noted(patch: Patch) -> None:
    _without(patch, "effect_start")


def _answer_of_the_claim_ignored(patch: Patch) -> None:
    def wrong(right: Callable[[Step], Any], performer: Performer, step: Step) -> Any:
        reply = right(step)
        claims = isinstance(step, steps.Begin) and step.carried
        return 1 if claims or (isinstance(step, steps.Commit) and step.then is not None) else reply

    _around(patch, wrong)


def _published_outside_the_transaction(patch: Patch) -> None:
    def wrong(right: Callable[[Step], Any], performer: Performer, step: Step) -> Any:
        if isinstance(step, steps.Handle):
            reply = right(step)
            for item in step.items:
                if item.publications:
                    right(steps.Side(publish_call(performer.work.queries, item.publications)))
                    item.publications = []
            return reply
        return right(step)

    _around(patch, wrong)


def _confirmation_not_looked_at(patch: Patch) -> None:
    def publish(batch: list[Any]) -> Any:
        try:
            yield steps.Publish(tuple(batch))
        except Exception:
            return [None] * len(batch)
        return [None] * len(batch)

    patch(relay, "_publish", publish)


def _failure_acked(patch: Patch) -> None:
    def wrong(right: Callable[[Step], Any], performer: Performer, step: Step) -> Any:
        for item in step.items if isinstance(step, steps.Settle) else ():
            if item.outcome is not None and item.outcome.status is Status.RETRY:
                item.outcome = Outcome(Status.DUPLICATE)
        return right(step)

    _around(patch, wrong)


def _failed_neighbour_not_undone(patch: Patch) -> None:
    def wrong(right: Callable[[Step], Any], performer: Performer, step: Step) -> Any:
        return None if isinstance(step, steps.Restore) else right(step)

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
    "finished, but left in the queue": _finish_forgotten,
    "call not noted before it is made": _call_not_noted,
    "answer of the claim ignored": _answer_of_the_claim_ignored,
    "published outside the transaction": _published_outside_the_transaction,
    "confirmation not looked at": _confirmation_not_looked_at,
    "failure acked": _failure_acked,
    "failed neighbour not undone": _failed_neighbour_not_undone,
}
