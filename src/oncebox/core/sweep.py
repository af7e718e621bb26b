"""Retention: what is past its window leaves the ledger, a little at a time.

One process walks, by a lease; every step of the walk is a transaction of its own, so that a walk can be
killed anywhere and goes on where it was. What waits, is dead, unfinished or unknown is never touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from oncebox import errors
from oncebox.core.archiving import Key, archive_rows, key_of, microseconds
from oncebox.core.queries import Queries, Query
from oncebox.core.steps import Begin, Call, Commit, Execute, Fetch, Op, Rollback
from oncebox.core.work import new_token

LEASE_SECONDS = 60.0
ARCHIVE_LEASE_SECONDS = 600.0
"""An archive may be slow; whoever loses the lease meanwhile deletes nothing, and has written in vain."""
MARK_SECONDS = 3600.0
"""How often the oldest waiting place is noted."""
SLACK_SECONDS = 2 * MARK_SECONDS
"""What a mark may be late: added to the window of stored messages by keeping everything that much longer."""
JUMP_SECONDS = 86_400.0
"""The most that the clock may have gone on since the last walk: a clock that jumped a month ahead must not
erase a month."""
TALLY_SECONDS = 400 * 86_400.0


class Row(msgspec.Struct, frozen=True, gc=False):
    """One ledger row that is past its window."""

    consumer: str
    source: str
    id: str
    type: str
    fingerprint: bytes
    received: Any
    finished: Any
    state: int


class Walk(msgspec.Struct):
    """Where a walk stands."""

    place: int
    end: int
    behind_seconds: float
    """How far behind the clock it keeps, because the clock has jumped."""
    passed_seconds: float | None
    """How long ago the last walk ended; None: never."""
    archives: frozenset[str] = frozenset()
    """Consumers whose rows are written to an archive before they are deleted."""
    failed: dict[str, errors.ArchiveError] = {}
    """Whose archive has failed in this walk: nothing more of theirs is deleted by it."""

    @property
    def lease_seconds(self) -> float:
        """For how long a step may take before others may walk."""
        return ARCHIVE_LEASE_SECONDS if self.archives else LEASE_SECONDS


def begin_walk(queries: Queries, holder: str, archives: Collection[str] = ()) -> Op[Walk | None]:
    """Lease the walk, or None when somebody else has it."""
    params = {"holder": holder, "seconds": ARCHIVE_LEASE_SECONDS if archives else LEASE_SECONDS}
    rows = yield Fetch(Call(queries.sweep_lease, params))
    if not rows:
        return None
    place, passed, run, end = rows[0]
    behind = max(0.0, float(run) - JUMP_SECONDS) if run is not None else 0.0
    passed = None if passed is None else float(passed)
    return Walk(int(place), int(end), behind, passed, frozenset(archives))


def look(queries: Queries) -> Op[Walk]:
    """The whole way, from its beginning; leases nothing."""
    rows = yield Fetch(Call(queries.sweep_end, {}))
    return Walk(0, int(rows[0][0]), 0.0, None)


def count_step(queries: Queries, windows: Mapping[str, float], walk: Walk, step: int) -> Op[Counter[str]]:
    """How many the next `step` of a walk would delete. Locks nothing."""
    rows = yield from _past(queries.sweep_look, windows, walk, step)
    return Counter(row.consumer for row in rows)


def note_marks(queries: Queries, windows: Mapping[str, float], walk: Walk) -> Op[None]:
    """Note the oldest waiting place of each consumer, once in a while. While the clock is in doubt, no mark
    is dropped."""
    params = {"consumers": sorted(windows), "seconds": MARK_SECONDS}
    token = new_token()
    drops = tuple(
        Call(queries.low_drop, {"consumer": consumer, "seconds": seconds + SLACK_SECONDS})
        for consumer, seconds in sorted(windows.items())
        if not walk.behind_seconds
    )
    yield from _in_transaction(token, (Call(queries.low_note, params), *drops))


def find(queries: Queries, windows: Mapping[str, float], walk: Walk, step: int) -> Op[list[Row]]:
    """What is past its window in the next `step` of the walk; in a transaction, locked."""
    return (yield from _past(queries.sweep_find, windows, walk, step))


def _past(query: Query, windows: Mapping[str, float], walk: Walk, step: int) -> Op[list[Row]]:
    late = walk.behind_seconds + SLACK_SECONDS
    rows = [
        {"consumer": consumer, "seconds": seconds + late} for consumer, seconds in sorted(windows.items())
    ]
    params = {"windows": msgspec.json.encode(rows).decode(), "first": walk.place, "last": walk.place + step}
    found = yield Fetch(Call(query, params))
    return [
        Row(consumer, source, id_, kind, bytes(mark), received, finished, state)
        for consumer, source, id_, kind, mark, received, finished, state in found
    ]


def sweep_step(
    queries: Queries, windows: Mapping[str, float], walk: Walk, holder: str, step: int
) -> Op[Counter[str] | None]:
    """Delete what is past its window in the next `step` of the walk, and move on, in one transaction.

    What has an archive is written there first, and deleted only if it is verified to be there, as it is now.
    Returns how many of each consumer, or None when the lease is another's by now: then nothing was deleted.
    """
    token = new_token()
    safe: dict[Key, Row] = {}
    if archived := {name: windows[name] for name in windows.keys() & walk.archives - walk.failed.keys()}:
        past = yield from _past(queries.sweep_look, archived, walk, step)
        safe = yield from archive_rows(queries, past, walk.failed)
    try:
        yield Begin(token)
        rows = yield from find(queries, windows, walk, step)
        rows = [row for row in rows if row.consumer not in walk.archives or safe.get(key_of(row)) == row]
        if rows:
            yield Execute((*drops(queries, rows), _forget(queries, rows)))
        held = yield Execute((_move(queries, walk, holder, step),))
        if not held:
            yield Rollback()
            return None
        yield Commit(token)
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    walk.place = 0 if _is_last(walk, step) else walk.place + step
    return Counter(row.consumer for row in rows)


def drops(queries: Queries, rows: Sequence[Row]) -> tuple[Call, ...]:
    """All that is kept of these."""
    keys = [{"consumer": row.consumer, "source": row.source, "message_id": row.id} for row in rows]
    keys.sort(key=lambda key: (key["consumer"], key["source"], key["message_id"]))
    names = (
        queries.sweep_results,
        queries.sweep_attempts,
        queries.sweep_effects,
        queries.sweep_kept,
        queries.sweep_drop,
    )
    return tuple(Call(query, {"rows": keys}) for query in names)


def _forget(queries: Queries, rows: Sequence[Row]) -> Call:
    """Up to when something of each consumer is forgotten now, by receipt."""
    latest: dict[str, int] = {}
    for row in rows:
        latest[row.consumer] = max(latest.get(row.consumer, 0), microseconds(row.received))
    marks = [{"consumer": consumer, "received": at} for consumer, at in sorted(latest.items())]
    return Call(queries.forget, {"rows": marks})


def _move(queries: Queries, walk: Walk, holder: str, step: int) -> Call:
    done = _is_last(walk, step)
    params = {"holder": holder, "done": done, "behind": walk.behind_seconds, "seconds": walk.lease_seconds}
    return Call(queries.sweep_move, {**params, "place": 0 if done else walk.place + step})


def _is_last(walk: Walk, step: int) -> bool:
    return walk.place + step >= walk.end


def end_walk(queries: Queries, holder: str) -> Op[None]:
    """Let others walk."""
    yield from _in_transaction(new_token(), (Call(queries.sweep_free, {"holder": holder}),))


def sweep_keys(queries: Queries, consumer: str, seconds: float, limit: int = 500) -> Op[int]:
    """Rows of lanes in which nothing waits and nothing has happened for the window."""
    token = new_token()
    try:
        yield Begin(token)
        params = {"consumer": consumer, "seconds": seconds + SLACK_SECONDS, "limit": limit}
        rows = yield Fetch(Call(queries.sweep_keys, params))
        if not rows:
            yield Rollback()
            return 0
        # A statement of its own: it must see what was stored while the locks were waited for.
        keys = {"consumer": consumer, "keys": [row[1] for row in rows]}
        yield Commit(token, (Call(queries.sweep_keys_drop, keys),))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    return len(rows)


def sweep_tallies(queries: Queries) -> Op[None]:
    """Counts per minute are kept for a year and a bit."""
    yield from _in_transaction(new_token(), (Call(queries.sweep_tally, {"seconds": TALLY_SECONDS}),))


def _in_transaction(token: str, calls: tuple[Call, ...]) -> Op[None]:
    try:
        yield Begin(token)
        yield Commit(token, calls)
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
