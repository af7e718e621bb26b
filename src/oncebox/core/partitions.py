"""A ledger in partitions by the day that ids carry: made ahead, emptied at once when their day is past, and dropped.

Every flow here is one transaction: a process that dies anywhere in it leaves nothing behind. Locks are waited for
briefly, and what can't have its lock is tried again by a later walk; until then the walk deletes row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

import msgspec

from oncebox import errors
from oncebox.core.archiving import microseconds
from oncebox.core.leaves import KINDS, Leaf, Split, lowest, read_tree
from oncebox.core.queries import Queries, Query
from oncebox.core.steps import Begin, Call, Commit, Execute, Fetch, Op, Rollback
from oncebox.core.work import new_token

LOCK_MS = 200
STALL_MS = 50
"""For so long may the consumer's own messages wait for a partition to go."""
SPLIT_LOCK_MS = 2_000
HELD_MAX = 10_000
"""A partition with more rows than these that must stay is walked row by row."""
_ALL = 2**31 - 1
_NONE: Mapping[str, Any] = {}


def make_day(queries: Queries, split: Split, day: date) -> Op[None]:
    """A partition for one day. LockBusy when somebody holds what it takes."""
    token = new_token()
    try:
        yield Begin(token, lock_ms=LOCK_MS)
        yield Execute((_make(queries, split, day),))
        yield Commit(token)
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise


def clear_day(queries: Queries, leaf: Leaf, windows: str, fence: Call) -> Op[tuple[int, int] | None]:
    """Empty a partition, but for what must stay. Returns how many rows went and how many stayed.

    None: too many have to stay, or the lease is another's by now (`fence` changes no row); nothing was deleted then.
    `windows` is as for the walk, which decides by the same words what is past its window.
    """
    token, name = new_token(), leaf.name
    everything = {"windows": windows, "first": 0, "last": _ALL}
    try:
        yield Begin(token, lock_ms=LOCK_MS, lazy=True)
        yield Execute((_call(queries.partition_lock, ledger=name),))
        [(rows, spent, latest)] = yield Fetch(_call(queries.partition_spent, everything, ledger=name))
        held, change = rows - spent, queries.partition_empty
        if 0 < held <= min(HELD_MAX, rows - 1):
            most = {**everything, "limit": HELD_MAX + 1}
            yield Execute((_call(queries.partition_held, most, ledger=name),))
            # Counted anew: more may be dead by now, or past its window.
            [(rows, held, latest)] = yield Fetch(_call(queries.partition_told, ledger=name))
            change = queries.partition_clear
        if held > HELD_MAX or held == rows:
            yield Rollback()
            return None
        marks = [{"consumer": leaf.consumer, "received": microseconds(latest)}]
        if not (yield Execute((_call(change, ledger=name), Call(queries.forget, {"rows": marks}), fence))):
            yield Rollback()
            return None
        yield Commit(token)
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    return rows - held, held


def retire_day(queries: Queries, split: Split, leaf: Leaf, fence: Call) -> Op[bool]:
    """Drop a partition whose day is past; what must stay moves to the rest. False when that is too much."""
    token = new_token()
    names = {"ledger": leaf.name, "parent": split.name, "rest": split.rest}
    try:
        yield Begin(token, lock_ms=STALL_MS, lazy=True)
        most = {"limit": HELD_MAX + 1}
        left = yield Fetch(_call(queries.partition_count, most, ledger=leaf.name))
        done = left[0][0] <= HELD_MAX
        if done:
            done = bool((yield Execute((_call(queries.partition_retire, _NONE, **names), fence))))
        if not done:
            yield Rollback()
            return False
        yield Commit(token)
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    return True


def split(queries: Queries, consumer: str, ids: str) -> Op[int]:
    """Give a consumer partitions, from today on; what it has in the ledger moves there, in the same transaction.
    Returns how many rows.

    Nobody claims meanwhile. UsageError where it has them already, LockBusy when the ledger can't be had for a moment.
    """
    if ids not in KINDS:
        raise errors.UsageError(f"ids can be {', '.join(KINDS)}, not {ids!r}")
    token = new_token()
    try:
        yield Begin(token, lock_ms=SPLIT_LOCK_MS)
        yield Execute((_call(queries.partition_lock_all),))
        rows = yield from count_rows(queries, consumer)
        found = yield from read_tree(queries, 0)
        if any(each.consumer == consumer for each in found.splits):
            raise errors.UsageError(f"consumer {consumer!r} has partitions already")
        if len(found.leaves) == 1 and found.leaves[0].name == "ledger":
            yield Execute((_call(queries.partition_whole, ledger="ledger", like="ledger_rest"),))
        numbers = [int(each.name.rpartition("_")[2]) for each in found.splits]
        made = Split(consumer, ids, f"ledger_{max(numbers, default=0) + 1}", ())
        note = {"note": msgspec.json.encode({"consumer": consumer, "ids": ids}).decode()}
        names = {"parent": made.name, "ledger": made.rest, "like": "ledger"}
        yield Execute((_call(queries.partition_parent, note, **names),))
        yield Execute(tuple(_make(queries, made, day) for day in made.missing(found.now)))
        yield Execute((_call(queries.partition_join, {"consumer": consumer}, parent=made.name),))
        yield Commit(token)
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    return rows


def undo(queries: Queries, consumer: str) -> Op[int]:
    """Back into the common table, with all its rows, in one transaction. UsageError where there are no partitions."""
    token = new_token()
    try:
        yield Begin(token, lock_ms=SPLIT_LOCK_MS)
        yield Execute((_call(queries.partition_lock_all),))
        rows = yield from count_rows(queries, consumer)
        found = yield from read_tree(queries, 0)
        mine = next((each for each in found.splits if each.consumer == consumer), None)
        if mine is None:
            raise errors.UsageError(f"consumer {consumer!r} has no partitions")
        yield Execute((_call(queries.partition_undo, parent=mine.name),))
        yield Commit(token)
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    return rows


def count_rows(queries: Queries, consumer: str) -> Op[int]:
    """How many rows a consumer has in the ledger, wherever they lie."""
    rows = yield Fetch(_call(queries.partition_rows, {"consumer": consumer}))
    return int(rows[0][0])


def _make(queries: Queries, whose: Split, day: date) -> Call:
    names = {
        "ledger": f"{whose.name}_{day:%Y%m%d}",
        "like": "ledger",
        "parent": whose.name,
        "rest": whose.rest,
        "low": lowest(whose.ids, day),
        "high": lowest(whose.ids, day + timedelta(days=1)),
    }
    note = msgspec.json.encode({"day": day.isoformat()}).decode()
    return _call(queries.partition_make, {"note": note}, **names)


def _call(query: Query | None, params: Mapping[str, Any] = _NONE, **names: str) -> Call:
    if query is None:
        raise errors.UsageError("partitions are PostgreSQL's; a ledger on SQLite is walked row by row")
    return Call(query.of(**names), dict(params))
