"""What people and policies decide about messages, broken at every step like everything else: dead ones are
redriven, let go or resolved, claims taken back, calls settled, gaps closed, what is done is replayed; and what is past
its window is forgotten."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import psycopg

from oncebox import Inbox, Message
from oncebox.core import sweep
from oncebox.core.audit import Act
from oncebox.core.dead import Choice, Decision, dead_letters, decide, resolve
from oncebox.core.keys import close_gaps
from oncebox.core.replay import replay
from oncebox.core.replay_terms import Order
from oncebox.core.settle import open_effects, settle
from oncebox.core.steps import Archive, Op
from oncebox.core.unfinished import decide_claims
from oncebox.core.work import Work
from tests.crash.checker import Key, Seen, Tables
from tests.crash.effects import AGAIN
from tests.crash.events import Events

WINDOW_SECONDS = 86_400.0
STEP = 1_000_000
"""The whole ledger in one step of the walk, however many cells have been there before."""


def _deciding(decision: Decision) -> Callable[[Work], Op[Any]]:
    def flow(work: Work) -> Op[Any]:
        act = Act(verb=f"dead {decision}", who="somebody", reason="it was looked at")
        return decide(work.queries, decision, Choice(consumer=work.consumer), act)

    return flow


def _deciding_claims(decision: Decision) -> Callable[[Work], Op[Any]]:
    def flow(work: Work) -> Op[None]:
        """As the command does: a claim that was delivered meanwhile is among the dead by now."""
        act = Act(verb=f"dead {decision}", who="somebody", reason="it was looked at")
        choice, found = Choice(consumer=work.consumer), True
        while found:
            found = bool((yield from decide(work.queries, decision, choice, act)))
            found = found or bool((yield from decide_claims(work.queries, decision, choice, act)))

    return flow


def _resolving(work: Work) -> Op[None]:
    for dead in (yield from dead_letters(work.queries, Choice(consumer=work.consumer))):
        act = Act(verb="dead resolve", who="somebody", reason="both are meant")
        yield from resolve(work.queries, dead, "second", act)


def _settling(happened: bool) -> Callable[[Work], Op[Any]]:
    def flow(work: Work) -> Op[None]:
        for each in (yield from open_effects(work.queries, work.consumer)):
            yield from settle(
                work.queries, each.id, happened=happened, reason="asked them", consumer=work.consumer
            )

    return flow


def _purging(*, archived: bool) -> Callable[[Work], Op[Any]]:
    def flow(work: Work) -> Op[None]:
        """The walk of the sweeper, and the end of its lease."""
        queries, windows = work.queries, {work.consumer: WINDOW_SECONDS}
        walk = yield from sweep.begin_walk(queries, work.worker, (work.consumer,) if archived else ())
        if walk is None:
            return
        yield from sweep.note_marks(queries, windows, walk)
        yield from sweep.sweep_step(queries, windows, walk, work.worker, STEP)
        yield from sweep.sweep_keys(queries, work.consumer, WINDOW_SECONDS)
        yield from sweep.sweep_tallies(queries)
        yield from sweep.end_walk(queries, work.worker)

    return flow


def archive(step: Archive, events: Events) -> None:
    """An archive that keeps everything, in the log."""
    for row in step.rows:
        events.log("archived", id=row.id)


def _replaying(work: Work) -> Op[Any]:
    return replay(work, Order(act=Act(verb="replay", who="somebody", reason="a new column")))


DECISIONS: dict[str, Callable[[Work], Op[Any]]] = {
    "redrive": _deciding("redrive"),
    "discard": _deciding("discard"),
    "redrive claims": _deciding_claims("redrive"),
    "discard claims": _deciding_claims("discard"),
    "resolve": _resolving,
    "settle: it happened": _settling(True),
    "settle: it did not": _settling(False),
    "gap": close_gaps,
    "purge": _purging(archived=False),
    "purge, archived": _purging(archived=True),
    "replay": _replaying,
}
AUDITED = {
    "redrive": 1, "discard": 1, "redrive claims": 2, "discard claims": 2, "resolve": 2, "settle: it happened": 1,
    "settle: it did not": 1,
}  # fmt: skip
"""Rows that each leaves on record, however often it was tried."""


def leave_unfinished(url: str, consumer: str, messages: Iterable[Message]) -> None:
    """Claim them by the guard, have its blocks raise, and commit all the same."""
    path = url.removeprefix("sqlite:///")
    connection: Any = sqlite3.connect(path) if path != url else psycopg.connect(url)
    inbox = Inbox(consumer)
    for message in messages:
        with suppress(KeyError), inbox.once(
            connection, message.id, source=message.source, type=message.type, payload=message.payload
        ) as claim:  # fmt: skip
            assert claim.first
            raise KeyError(message.id)
    connection.commit()
    connection.close()


def make_old(connection: Any, consumer: str) -> None:
    """A year passes for all that is there, but for `b`; what waits was noted then."""
    sqlite = isinstance(connection, sqlite3.Connection)
    year, prefix = (365 * 86_400_000_000, "oncebox_") if sqlite else ("interval '1 year'", "oncebox.")
    own = f"FROM {prefix}ledger WHERE consumer = '{consumer}'"
    connection.execute(
        f"UPDATE {prefix}ledger SET received = received - {year}, again = again - {year}, finished = finished - {year} "
        f"WHERE consumer = '{consumer}' AND message_id <> 'b'"
    )
    connection.execute(
        f"INSERT INTO {prefix}low (consumer, at, seq) SELECT '{consumer}', min(received), max(seq) + 1 {own}"
    )


def let_others_walk(connection: Any) -> None:
    """A minute passes for the lease of a walk whose process has died."""
    sqlite = isinstance(connection, sqlite3.Connection)
    table, never = ("oncebox_sweep", "0") if sqlite else ("oncebox.sweep", "'-infinity'")
    connection.execute(f"UPDATE {table} SET until = {never}, place = 0")


def let_gaps_grow(connection: Any, consumer: str) -> None:
    """A second passes for the keys that wait for a version: a clock may not have moved since."""
    sqlite = isinstance(connection, sqlite3.Connection)
    table, second = ("oncebox_key", "1000000") if sqlite else ("oncebox.key", "interval '1 second'")
    connection.execute(f"UPDATE {table} SET gap = gap - {second} WHERE consumer = '{consumer}'")


def wrong(
    connection: Any, consumer: str, runs: str, events: list[dict[str, Any]], *, more: bool
) -> list[str]:
    """What is wrong with what was put on record, and with the calls that a person decided about. `more`: a
    second fault may have led to another decision."""
    if runs not in AUDITED:
        return []
    prefix = "oncebox_" if isinstance(connection, sqlite3.Connection) else "oncebox."
    text = f"SELECT count(*) FROM {prefix}audit WHERE consumer = '{consumer}'"
    ((rows,),) = connection.execute(text).fetchall()
    calls = sum(event["event"] == "called" for event in events)
    if runs == "settle: it did not":
        # The call that is made then may be in doubt, too, and somebody has to decide again.
        return (
            [f"{runs}, decided {rows} times, and called {calls} times"] if not calls == rows + 1 >= 2 else []
        )
    as_told = rows >= AUDITED[runs] if more else rows == AUDITED[runs]
    words = [] if as_told else [f"{runs} left {rows} rows of audit"]
    if runs == "settle: it happened" and calls != 1:
        words.append(f"{runs}, and it was called {calls} times")
    return words


def replays(connection: Any, consumer: str) -> int:
    """Runs that came to their end."""
    prefix = "oncebox_" if isinstance(connection, sqlite3.Connection) else "oncebox."
    text = f"SELECT count(*) FROM {prefix}audit WHERE consumer = '{consumer}' AND result LIKE 'done:%'"
    ((runs,),) = connection.execute(text).fetchall()
    return int(runs)


def replayed(connection: Any, consumer: str, runs: str, found: Tables) -> tuple[list[str], Tables]:
    """Whether each message took effect once more in each run, and what is there without these effects."""
    again = Counter(key[2] for key in found.effects if key[1] == AGAIN)
    kept = dataclasses.replace(found, effects=[key for key in found.effects if key[1] != AGAIN])
    if runs != "replay":
        return [], kept
    wanted = replays(connection, consumer)
    words = [] if wanted else ["I5: the replay came to no end"]
    words += [
        f"I1: {row.key[2]!r} took effect {again[row.key[2]]} times in {wanted} replays"
        for row in found.ledger
        if again[row.key[2]] != wanted
    ]
    return words, kept


def unarchived(runs: str, keys: set[Key], events: list[dict[str, Any]]) -> list[str]:
    """What is gone and is in no archive, in words."""
    kept = {event["id"] for event in events if event["event"] == "archived"}
    gone = sorted(key[2] for key in keys if key[2] not in kept)
    return [f"I8: {gone} are forgotten, and in no archive"] if gone and runs == "purge, archived" else []


def forgotten(connection: Any, keys: set[Key], seen: Seen, found: Tables) -> tuple[list[str], Seen, Tables]:
    """What is left of those that were to be forgotten, in words; and the evidence about all others."""
    prefix = "oncebox_" if isinstance(connection, sqlite3.Connection) else "oncebox."
    words = []
    for consumer, source, message_id in sorted(keys):
        for table in ("ledger", "result", "attempt"):
            text = (
                f"SELECT 1 FROM {prefix}{table} WHERE consumer = '{consumer}' AND message_id = '{message_id}'"
            )
            if connection.execute(text).fetchall():
                words.append(f"{message_id!r} of {source!r} is past its window, and still in {table}")
    kept = dataclasses.replace(
        found,
        effects=[key for key in found.effects if key not in keys],
        ledger=[row for row in found.ledger if row.key not in keys],
        attempts=[row for row in found.attempts if row.key not in keys],
    )
    others = dataclasses.replace(
        seen,
        sent=[sent for sent in seen.sent if sent.key not in keys],
        acked=[key for key in seen.acked if key not in keys],
        starts=[start for start in seen.starts if start.key not in keys],
    )
    once = [key for key in keys if found.effects.count(key) == 1]
    return words + [f"{key} did not take effect once" for key in keys if key not in once], others, kept
