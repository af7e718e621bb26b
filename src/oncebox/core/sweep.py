"""Retention: what is past its window leaves the ledger, a little at a time.

One process walks, by a lease; every step of the walk is a transaction of its own, so that a walk can be
killed anywhere and goes on where it was. What waits, is dead, unfinished or unknown is never touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from oncebox import errors
from oncebox.core.archiving import Key, archive_rows, key_of, microseconds
from oncebox.core.leaves import Leaf, Split, Tree, read_tree
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
    leaves: tuple[Leaf, ...]
    """What there is to walk, in this order."""
    behind_seconds: float
    """How far behind the clock it keeps, because the clock has jumped."""
    passed_seconds: float | None
    """How long ago the last walk ended; None: never."""
    archives: frozenset[str] = frozenset()
    """Consumers whose rows are written to an archive before they are deleted."""
    failed: dict[str, errors.ArchiveError] = {}
    """Whose archive has failed in this walk: nothing more of theirs is deleted by it."""
    splits: tuple[Split, ...] = ()
    now: float = 0.0
    """The database's clock when the walk was taken up; 0 where there are no partitions."""

    @property
    def end(self) -> int:
        return self.leaves[-1].end if self.leaves else 0

    @property
    def leaf(self) -> Leaf | None:
        """Where it walks now; None at the end."""
        return next((leaf for leaf in self.leaves if self.place < leaf.end), None)

    @property
    def lease_seconds(self) -> float:
        """For how long a step may take before others may walk."""
        return ARCHIVE_LEASE_SECONDS if self.archives or self.splits else LEASE_SECONDS

    def after(self, step: int) -> int:
        """The place after a step, which ends with its leaf; 0 when that was the last."""
        leaf = self.leaf
        place = max(self.place, leaf.first) + step if leaf is not None else self.end
        if leaf is not None and place < leaf.end:
            return place
        return next((each.first for each in self.leaves if leaf is not None and each.first >= leaf.end), 0)


def begin_walk(
    queries: Queries, holder: str, archives: Collection[str] = (), windows: Mapping[str, float] | None = None
) -> Op[Walk | None]:
    """Lease the walk, or None when somebody else has it. Days that are within their window are left out."""
    params = {"holder": holder, "seconds": ARCHIVE_LEASE_SECONDS if archives else LEASE_SECONDS}
    rows = yield Fetch(Call(queries.sweep_lease, params))
    if not rows:
        return None
    place, passed, run, end = rows[0]
    behind = max(0.0, float(run) - JUMP_SECONDS) if run is not None else 0.0
    passed = None if passed is None else float(passed)
    tree = yield from read_tree(queries, int(end))
    leaves = _over(tree, windows, behind)
    return Walk(int(place), leaves, behind, passed, frozenset(archives), {}, tree.splits, tree.now)


def look(queries: Queries, windows: Mapping[str, float] | None = None) -> Op[Walk]:
    """The whole way, from its beginning; leases nothing."""
    rows = yield Fetch(Call(queries.sweep_end, {}))
    tree = yield from read_tree(queries, int(rows[0][0]))
    return Walk(0, _over(tree, windows, 0.0), 0.0, None, splits=tree.splits, now=tree.now)


def _over(tree: Tree, windows: Mapping[str, float] | None, behind: float) -> tuple[Leaf, ...]:
    late = behind + SLACK_SECONDS
    return tuple(leaf for leaf in tree.leaves if windows is None or leaf.is_over(windows, late, tree.now))


def count_step(queries: Queries, windows: Mapping[str, float], walk: Walk, step: int) -> Op[Counter[str]]:
    """How many the next `step` of a walk would delete, which it moves on by. Locks nothing."""
    rows = yield from _past(queries.sweep_look, windows, walk, step)
    walk.place = walk.after(step) or walk.end
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
    # Without a leaf there was nothing when the walk was taken up. Never the whole of a ledger in partitions: places
    # are a leaf's own, and mean other rows in the next one.
    found = (yield Fetch(_there(query, windows, walk.leaf, walk, step))) if walk.leaf is not None else ()
    return [
        Row(consumer, source, id_, kind, bytes(mark), received, finished, state)
        for consumer, source, id_, kind, mark, received, finished, state in found
    ]


def windows_text(windows: Mapping[str, float], walk: Walk) -> str:
    """Windows as the queries take them, later by what the walk keeps behind."""
    late = walk.behind_seconds + SLACK_SECONDS
    rows = [
        {"consumer": consumer, "seconds": seconds + late} for consumer, seconds in sorted(windows.items())
    ]
    return msgspec.json.encode(rows).decode()


def _there(query: Query, windows: Mapping[str, float], leaf: Leaf, walk: Walk, step: int) -> Call:
    first = max(walk.place - leaf.first, 0)
    params = {"windows": windows_text(windows, walk), "first": first, "last": first + step}
    return Call(query.of(ledger=leaf.name), params)


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
    deleted: Counter[str] = Counter()
    calls: list[Call] = []
    try:
        # A server that dies may take this back as a whole: what is forgotten later than need be harms nobody.
        yield Begin(token, lazy=True)
        listed, leaf = windows, walk.leaf
        if queries.sweep_purge is not None:
            listed = {name: windows[name] for name in windows.keys() & walk.archives}
            plain = {name: windows[name] for name in windows.keys() - walk.archives}
            if plain and leaf is not None:
                gone = yield Fetch(_there(queries.sweep_purge, plain, leaf, walk, step))
                deleted.update({consumer: count for consumer, count, _ in gone})
                calls += _forget(queries, [(consumer, at) for consumer, _, at in gone])
        if listed:
            rows = yield from find(queries, listed, walk, step)
            rows = [row for row in rows if row.consumer not in walk.archives or safe.get(key_of(row)) == row]
            deleted.update(row.consumer for row in rows)
            calls += drops(queries, rows) if rows else ()
            calls += _forget(queries, [(row.consumer, row.received) for row in rows])
        place = walk.after(step)
        held = yield Execute((*calls, move(queries, walk, holder, place, done=place == 0)))
        if not held:
            yield Rollback()
            return None
        yield Commit(token)
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    walk.place = place
    return deleted


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


def _forget(queries: Queries, receipts: Iterable[tuple[str, Any]]) -> Iterator[Call]:
    """Up to when something of each consumer is forgotten now, by receipt."""
    latest: dict[str, int] = {}
    for consumer, received in receipts:
        latest[consumer] = max(latest.get(consumer, 0), microseconds(received))
    if latest:
        marks = [{"consumer": consumer, "received": at} for consumer, at in sorted(latest.items())]
        yield Call(queries.forget, {"rows": marks})


def move(queries: Queries, walk: Walk, holder: str, place: int, *, done: bool = False) -> Call:
    """Where the walk stands now; changes no row when the lease is another's."""
    params = {"holder": holder, "done": done, "behind": walk.behind_seconds, "seconds": walk.lease_seconds}
    return Call(queries.sweep_move, {**params, "place": place})


def renew(queries: Queries, walk: Walk, holder: str) -> Op[bool]:
    """Keep the lease for what takes its time. False when it is another's by now."""
    token = new_token()
    try:
        held = yield Begin(token, (move(queries, walk, holder, walk.place),))
        yield Commit(token)
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    return bool(held)


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
