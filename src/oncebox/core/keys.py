"""Lanes that stand still: found, told about, and moved on by policy or by a person."""

from __future__ import annotations

from typing import Any

import msgspec

from oncebox import errors
from oncebox.core.audit import Act, Touched, audit
from oncebox.core.failure import Fate, Verdict, bury_queued
from oncebox.core.lanes import advance, advance_those, lanes_from, lock
from oncebox.core.outcomes import Reason
from oncebox.core.queries import Queries
from oncebox.core.steps import Begin, Call, Commit, Execute, Fetch, Op, Rollback
from oncebox.core.stored import to_item
from oncebox.core.work import Work, new_token

LIST_MAX = 1000
PARK_MAX = 1000
"""Most messages of one lane that are parked in one transaction."""


class StuckKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key whose messages do not run."""

    consumer: str
    key: str
    why: str
    """`blocked`: its head is dead. `gap`: a version is missing."""
    age_seconds: float
    waiting: int
    """Messages that wait behind it; counted up to 10,000."""
    source: str = ""
    head: str = ""
    """The dead message that blocks it."""
    last: int | None = None
    missing: str = ""
    """The versions it waits for, as `4` or `4-7`."""


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """A key that missed its deadline, and what was done about it."""

    key: str
    done: str
    """`parked`, `skipped`, `proceeded`."""
    messages: int = 0


def stuck_keys(queries: Queries, consumer: str | None = None, key: str | None = None) -> Op[list[StuckKey]]:
    """Keys that are blocked or wait for a missing version, the longest first."""
    params = {"consumer": consumer, "key": key, "limit": LIST_MAX}
    rows = yield Fetch(Call(queries.keys_stuck, params))
    return [_stuck(row) for row in rows]


def _stuck(row: Any) -> StuckKey:
    consumer, key, last, why, age, source, message_id, first, waiting = row
    missing = ""
    if why == "gap" and last is not None and first is not None and first > last + 1:
        missing = str(last + 1) if first == last + 2 else f"{last + 1}-{first - 1}"
    return StuckKey(
        consumer=consumer, key=key, why=why, age_seconds=float(age), waiting=int(waiting),
        source=source or "", head=message_id or "", last=last, missing=missing,
    )  # fmt: skip


def close_gaps(work: Work, limit: int = 100) -> Op[list[Passed]]:
    """What the policy says about keys that have waited too long for a missing version."""
    params = {"consumer": work.consumer, "seconds": work.policy.gap_seconds, "limit": limit}
    rows = yield Fetch(work.call(work.queries.key_overdue, **params))
    passed: list[Passed] = []
    for (key,) in [tuple(row) for row in rows]:
        done = yield from _close(work, str(key))
        if done is not None:
            passed.append(done)
    return passed


def _close(work: Work, key: str) -> Op[Passed | None]:
    token = work.token()
    try:
        yield Begin(token)
        lanes = lanes_from((yield Fetch(lock(work.queries, work.consumer, [key]))))
        waiting = yield Fetch(
            work.call(work.queries.key_waiting, consumer=work.consumer, key=key, limit=PARK_MAX)
        )
        items = [to_item(work, row) for row in waiting]
        if not items or key not in lanes or not lanes[key].is_ahead(items[0].version):
            # The missing one came meanwhile.
            yield Commit(token, advance_those(work, [key]))
            return None
        last = lanes[key].last
        if work.policy.on_gap != "park":
            keep = work.policy.on_gap == "proceed"
            skip = work.call(work.queries.key_skip, consumer=work.consumer, key=key, keep=keep)
            yield Commit(token, (skip, *advance_those(work, [key])))
            return Passed(key=key, done="proceeded" if keep else "skipped")
        calls: tuple[Call, ...] = ()
        for item in items:
            error = errors.SequenceGap(
                f"consumer {work.consumer!r}, key {key!r}: version {item.version} waited {work.policy.gap_seconds:g} s "
                f"for the one after {last}; send the missing ones, then redrive it"
            )
            calls += bury_queued(work, item, Verdict(Fate.DEAD, error, Reason.GAP), charged=0)
        yield Commit(token, (*calls, *advance_those(work, [key])))
        return Passed(key=key, done="parked", messages=len(items))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise


def unblock(queries: Queries, consumer: str, key: str, act: Act) -> Op[None]:
    """Let a key go on without its dead head, which stays among the dead."""
    yield from _change(queries, consumer, key, act, "unblocked", {"blocked": True})


def skip_gap(queries: Queries, consumer: str, key: str, act: Act) -> Op[None]:
    """Let a key go on without the versions it waits for; if they come, they are stale."""
    yield from _change(queries, consumer, key, act, "skipped", {"blocked": False})


def reset(queries: Queries, consumer: str, key: str, last: int | None, act: Act) -> Op[None]:
    """Say which version of a key was the last one handled; None: forget it, and start with the first that
    waits, or as policy says with the next that comes."""
    yield from _change(queries, consumer, key, act, f"last version {last}", {"last": last})


def _change(
    queries: Queries, consumer: str, key: str, act: Act, result: str, what: dict[str, Any]
) -> Op[None]:
    named = f"consumer {consumer!r}, key {key!r}"
    token = new_token()
    at = {"consumer": consumer, "key": key}
    try:
        yield Begin(token)
        lanes = lanes_from((yield Fetch(lock(queries, consumer, [key]))))
        if key not in lanes:
            raise errors.UsageError(f"{named}: no such key; oncebox keys list shows those that stand still")
        if "last" in what:
            change = Call(queries.key_reset, {**at, "last": what["last"]})
        elif what["blocked"]:
            change = Call(queries.key_unblock, at)
        else:
            change = Call(queries.key_skip, {**at, "keep": False})
        if not (yield Execute((change,))):
            why = "is not blocked" if what.get("blocked") else "waits for no version"
            raise errors.UsageError(f"{named}: it {why}; oncebox keys list shows what stands still")
        told = audit(queries, act, [Touched(consumer=consumer, source="", id=key, result=result)])
        yield Commit(token, (*advance(queries, consumer, [key]), told))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
