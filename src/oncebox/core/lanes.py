"""Order: a lane is a consumer's key, and at most one message of a lane has the turn.

Only what has the turn can be taken, so a lane's messages run one at a time, in order, whoever takes
them. Whoever adds to a lane or takes from it locks the lane's row, and hands the turn on in the same
transaction. The lock is not held while a handler runs: by then the turn itself keeps others out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from oncebox.core.steps import Call
from oncebox.message import Message
from oncebox.policy import Policy

if TYPE_CHECKING:
    from oncebox.core.queries import Queries
    from oncebox.core.work import Item, Work


class Lane(msgspec.Struct):
    """How far a lane has come, as its locked row says."""

    last: int | None
    skipped: list[int]
    blocked: bool

    def is_past(self, version: int | None) -> bool:
        """Whether this version was handled, or given up on, before."""
        return (
            version is not None
            and self.last is not None
            and version <= self.last
            and version not in self.skipped
        )

    def is_ahead(self, version: int | None) -> bool:
        """Whether a version before this one is missing."""
        return version is not None and self.last is not None and version > self.last + 1


def lanes_of(items: Iterable[Item]) -> list[str]:
    """The lanes of these items, in the order in which everybody locks them."""
    return sorted({item.lane for item in items if item.lane is not None})


def touch(queries: Queries, consumer: str, policy: Policy, keys: list[str]) -> Call:
    """Have a row for each lane; a lane by sequence starts where policy says."""
    start = policy.sequence_start
    last = start - 1 if isinstance(start, int) else None
    return Call(queries.key_touch, {"consumer": consumer, "keys": keys, "last": last})


def lock(queries: Queries, consumer: str, keys: list[str]) -> Call:
    """Lock the rows of these lanes; `lanes_from` reads what comes back."""
    return Call(queries.key_lock, {"consumer": consumer, "keys": keys})


def lanes_from(rows: Iterable[Sequence[object]]) -> dict[str, Lane]:
    """The locked rows by key."""
    return {
        str(key): Lane(msgspec.convert(last, int | None), msgspec.json.decode(str(skipped)), bool(blocked))
        for key, last, skipped, blocked in rows
    }


def starts(
    queries: Queries, consumer: str, policy: Policy, lanes: dict[str, Lane], items: Iterable[Item]
) -> tuple[Call, ...]:
    """Locked lanes that stand nowhere yet start where policy says, or with the first version they see."""
    calls: list[Call] = []
    for item in items:
        if item.lane is None or item.version is None or lanes[item.lane].last is not None:
            continue
        start = policy.sequence_start
        last = (start if isinstance(start, int) else item.version) - 1
        lanes[item.lane].last = last
        calls.append(Call(queries.key_start, {"consumer": consumer, "key": item.lane, "last": last}))
    return tuple(calls)


def starts_unseen(
    queries: Queries, consumer: str, policy: Policy, places: Iterable[tuple[str | None, int | None]]
) -> tuple[Call, ...]:
    """The same where nobody reads the lanes first; it does nothing to a lane that stands somewhere."""
    firsts: dict[str, int] = {}
    for key, version in places:
        if key is not None and version is not None:
            firsts.setdefault(key, version)
    start = policy.sequence_start
    return tuple(
        Call(
            queries.key_start,
            {"consumer": consumer, "key": key, "last": (start if isinstance(start, int) else version) - 1},
        )
        for key, version in sorted(firsts.items())
    )


def advance(
    queries: Queries, consumer: str, keys: list[str], *, by_arrival: bool = False
) -> tuple[Call, ...]:
    """Give the turn to whoever is next in these lanes, which are locked.

    `by_arrival` leaves out what only versions need.
    """
    params = {"consumer": consumer, "keys": keys}
    if by_arrival:
        return (Call(queries.key_pass, params),)
    names = (queries.key_stale, queries.key_drop, queries.key_pass, queries.key_gaps)
    return tuple(Call(query, params) for query in names)


def leave(
    work: Work, calls: tuple[Call, ...], gone: Sequence[Item], dead: Sequence[Item] = ()
) -> tuple[Call, ...]:
    """`calls` take these items out of the queue; their lanes go on, or are blocked by a dead head."""
    keys = lanes_of((*gone, *dead))
    if not keys:
        return calls
    blocks = work.policy.on_dead == "block"
    after: tuple[Call, ...] = ()
    moved = [
        {"key": item.lane, "version": item.version} for item in (*gone, *dead) if item.version is not None
    ]
    if moved:
        after += (work.call(work.queries.key_moved, consumer=work.consumer, rows=moved),)
    if blocks:
        after += tuple(block(work, item) for item in dead if item.lane is not None)
    return (lock(work.queries, work.consumer, keys), *calls, *after, *advance_those(work, keys))


def unstick(
    queries: Queries, consumer: str, message: Message, lane: str | None, version: int | None = None
) -> tuple[Call, ...]:
    """A dead message is back in line, or done after all: it no longer blocks. `version` has it run late."""
    if lane is None:
        return ()
    params = {"consumer": consumer, "source": message.source, "message_id": message.id}
    redriven = Call(queries.key_redriven, {**params, "key": lane, "version": version})
    return (lock(queries, consumer, [lane]), redriven, *advance(queries, consumer, [lane]))


def block(work: Work, item: Item) -> Call:
    """Nothing of this lane runs until a person, or a redrive, has dealt with its dead head."""
    return work.keyed(work.queries.key_block, item, key=item.lane)


def advance_those(work: Work, keys: list[str]) -> tuple[Call, ...]:
    """`advance` for a worker's own consumer."""
    return advance(work.queries, work.consumer, keys, by_arrival=work.policy.order_by == "key")


def enter(work: Work, items: Sequence[Item]) -> tuple[list[str], Call]:
    """The lanes these items go to, and the call that makes sure of their rows."""
    keys = lanes_of(items)
    return keys, touch(work.queries, work.consumer, work.policy, keys)
