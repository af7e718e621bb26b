"""Shadow replay: handlers run in transactions that are rolled back, and what they would have done is counted.

Each message meets the tables as they are now. Nothing is written, not even that a replay was made; calls to
the outside world are not made. What a handler does outside of its transaction by itself, it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from oncebox.core.queries import Query
from oncebox.core.replay_pages import check_archive, coming, start_of
from oncebox.core.replay_terms import Order, check, nothing_kept
from oncebox.core.replaying import Placed
from oncebox.core.steps import Begin, Call, Execute, Fetch, Handle, Op, Rollback
from oncebox.core.work import Item, Work
from oncebox.errors import Conflict, DatabaseUnavailable, LockBusy, UsageError

LISTED_MAX = 100


class Rows(msgspec.Struct):
    """Rows of one table."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


class Shadow(msgspec.Struct, kw_only=True):
    """What would have changed."""

    consumer: str
    place: int = 0
    first: int = 0
    bound: int = 0
    messages: int = 0
    """Whose handlers ran to their end."""
    tables: dict[str, Rows] = {}
    published: dict[str, int] = {}
    """By type."""
    sent: dict[str, int] = {}
    """By consumer and type."""
    calls: dict[str, int] = {}
    """Calls to the outside, by type."""
    failed: dict[str, int] = {}
    """By class of error."""
    failures: list[dict[str, str]] = []
    """The first of them."""
    ended: str = ""


def shadow(
    work: Work,
    order: Order,
    progress: Callable[[Shadow], None] = lambda seen: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Op[Shadow]:
    """Run what is meant, keep nothing, and say what would have changed. UsageError as for a replay."""
    check(work, order)
    bound, first = (yield Fetch(Call(work.queries.replay_bound, {"consumer": work.consumer})))[0]
    if order.given is None and order.archived is None and first is None:
        raise UsageError(nothing_kept(work))
    check_archive(work, order, bound)
    start = start_of(order, first)
    seen = Shadow(consumer=work.consumer, bound=bound, first=start, place=start)
    watching = yield from _watching(work)
    more = coming(work, order)
    while not stopping():
        page = yield from more(seen.place, seen.bound)
        if not page:
            seen.ended = "done"
            return seen
        for placed in page:
            yield from _one(work, placed, seen, watching)
            seen.place = placed.place
            progress(seen)
            if stopping():
                break
    seen.ended = "stopped"
    return seen


def _watching(work: Work) -> Op[tuple[Call, ...]]:
    """What to do at a transaction's beginning to see its changes. On SQLite, temporary triggers, which go with
    its rollback; a row that INSERT OR REPLACE takes away is not seen by them."""
    if work.queries.replay_watch is None:
        return ()
    rows = yield Fetch(Call(work.queries.replay_watch, {}))
    return tuple(Call(Query("shadow_watch", str(row[0]), False), {}) for row in rows)


def _one(work: Work, placed: Placed, seen: Shadow, watching: tuple[Call, ...]) -> Op[None]:
    item = placed.item
    if item is None:
        _fails(seen, f"line {placed.place}", "MessageError")
        return
    if item.handler is not None and item.handler.effect is not None:
        seen.calls[item.message.type] = seen.calls.get(item.message.type, 0) + 1
        return
    fence = work.queries.fence
    calls = (Call(fence, {"slot": f"{work.worker}/{work.slot}"}),) if fence is not None else ()
    try:
        yield Begin(work.token(), calls)
        if watching:
            yield Execute(watching)
        before = yield from _changes(work)
        yield Handle((item,))
        after = yield from _changes(work)
    except BaseException as error:
        if isinstance(error, GeneratorExit):
            raise
        yield Rollback()
        if not isinstance(error, Exception) or isinstance(error, DatabaseUnavailable):
            raise
        if isinstance(error, (Conflict, LockBusy)):
            error.add_note("nothing is changed by a shadow replay; run it again")
            raise
        _fails(seen, item.message.id, type(error).__name__)
        return
    yield Rollback()
    _count(seen, item, before, after)


def _changes(work: Work) -> Op[dict[str, tuple[int, int, int]]]:
    rows = yield Fetch(Call(work.queries.replay_changes, {}))
    return {str(row[0]): (int(row[1]), int(row[2]), int(row[3])) for row in rows}


def _count(seen: Shadow, item: Item, before: dict[str, Any], after: dict[str, Any]) -> None:
    seen.messages += 1
    for name, now in after.items():
        inserted, updated, deleted = (n - m for n, m in zip(now, before.get(name, (0, 0, 0)), strict=True))
        if inserted or updated or deleted:
            rows = seen.tables.setdefault(name, Rows())
            rows.inserted += inserted
            rows.updated += updated
            rows.deleted += deleted
    published = Counter(each.message.type for each in item.publications)
    sent = Counter(f"{each.consumer}: {each.message.type}" for each in item.sendings)
    for counts, found in ((seen.published, published), (seen.sent, sent)):
        for kind, n in found.items():
            counts[kind] = counts.get(kind, 0) + n


def _fails(seen: Shadow, what: str, error: str) -> None:
    seen.failed[error] = seen.failed.get(error, 0) + 1
    if len(seen.failures) < LISTED_MAX:
        seen.failures.append({"id": what, "error": error})
