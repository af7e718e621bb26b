"""Replay: what was handled once is handled again, once per run.

A run covers what was done when it began, and nothing that is finished later: that has its effect by itself.
How far it is moves on in the transaction of the effects, so that a killed run goes on where it was, and no
message takes effect twice in it. What comes from a file may be new here; it is then claimed like a delivery.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from oncebox import errors
from oncebox.codec import unpack_headers, unpack_provenance
from oncebox.core.audit import Act, Touched, audit
from oncebox.core.failure import RERUNS_MAX
from oncebox.core.queries import Queries
from oncebox.core.replay_terms import Chosen, Order, Run, check, nothing_kept
from oncebox.core.replaying import Chunk, Placed, attempt
from oncebox.core.steps import Begin, Call, Commit, Execute, Fetch, Handle, Op, Rollback
from oncebox.core.work import Item, Work, new_token
from oncebox.message import Message

PAGE = 100


Progress = Callable[[Run], None]


def replay(
    work: Work,
    order: Order,
    progress: Progress = lambda run: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Op[Run]:
    """Handle everything that is covered, once; or go on with the run that is open.

    Returns the run, `done`, or `stopped` where `stopping` said so. Raises UsageError for what policy forbids
    and ReplayFailed at the first message whose handler fails, unless failures are to be skipped; the same
    order goes on from there.
    """
    check(work, order)
    run = yield from _open(work, order)
    run.first = run.place
    progress(run)
    line: deque[Placed] = deque()
    more = coming(work, order, run)
    while True:
        if stopping():
            run.ended = "stopped"
            return run
        if not line:
            line.extend((yield from more(run.place, run.bound)))
        if not line:
            break
        chunk = [line.popleft() for _ in range(min(order.batch, len(line)))]
        left = yield from _through(work, run, order, chunk)
        line.extendleft(reversed(left))
        progress(run)
    yield from _end(work.queries, run, order.act, "done")
    return run


def _open(work: Work, order: Order) -> Op[Run]:
    """The run that is open if it is this one, else a new one."""
    rows = yield Fetch(Call(work.queries.replay_open, {"consumer": work.consumer}))
    if not rows:
        return (yield from _begin(work, order))
    names = (
        "id",
        "policy",
        "origin",
        "filter",
        "bound",
        "place",
        "mark",
        "handled",
        "skipped",
        "failed",
        "suppressed",
    )
    run = Run(consumer=work.consumer, resumed=True, **dict(zip(names, rows[0], strict=True)))
    if order.restart:
        yield from _end(work.queries, run, order.act, "abandoned")
        return (yield from _begin(work, order))
    began = msgspec.json.decode(run.filter)
    order.chosen = msgspec.structs.replace(
        order.chosen, **{word: began[word] for word in order.ago if word in began}
    )
    if (run.policy, run.origin, run.filter) != (work.policy.replay, order.origin, _filter(order)):
        raise errors.UsageError(
            f"consumer {work.consumer!r}: run {run.id} is not at its end (replay={run.policy!r}, from {run.origin}, "
            f"{run.filter}); go on with it by the same command, or give it up with --restart"
        )
    return run


def _filter(order: Order) -> str:
    said = {word: value for word, value in order.chosen.words().items() if value is not None}
    return msgspec.json.encode(said).decode()


def _begin(work: Work, order: Order) -> Op[Run]:
    """Fix what is covered, and empty what is rebuilt, in one transaction that nobody finishes a message beside."""
    queries, consumer = work.queries, work.consumer
    _, first = (yield Fetch(Call(queries.replay_bound, {"consumer": consumer})))[0]
    if order.given is None and order.archived is None and first is None:
        raise errors.UsageError(nothing_kept(work))
    for rerun in range(RERUNS_MAX + 1):
        token = work.token()
        try:
            yield Begin(token, fence(work))
            if queries.replay_quiet is not None:
                yield Execute((Call(queries.replay_quiet, {}),))
            if order.reset is not None:
                yield Handle((_resetting(order),))
            bound, first = (yield Fetch(Call(queries.replay_bound, {"consumer": consumer})))[0]
            run = Run(
                id=order.act.id, consumer=consumer, policy=work.policy.replay, origin=order.origin,
                filter=_filter(order), bound=bound, place=start_of(order, first),
            )  # fmt: skip
            words = ("consumer", "policy", "origin", "filter", "bound", "place")
            params = {"run": run.id, **{word: getattr(run, word) for word in words}}
            if not (yield Execute((Call(queries.replay_begin, params),))):
                raise errors.UsageError(f"consumer {consumer!r}: somebody else has just begun a replay of it")
            yield Commit(token, (audit(queries, order.act, [_touched(run, "begun")]),))
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            yield Rollback()
            if isinstance(error, (errors.Conflict, errors.LockBusy)) and rerun < RERUNS_MAX:
                continue
            raise
        return run
    raise AssertionError("the last turn returns or raises")


def fence(work: Work) -> tuple[Call, ...]:
    """What lets the database refuse a commit by the handler, as for stored messages."""
    query = work.queries.fence
    return (Call(query, {"slot": f"{work.worker}/{work.slot}"}),) if query is not None else ()


def _resetting(order: Order) -> Item:
    message = Message(id=order.act.id, type="oncebox.reset", payload={}, replay=True)
    return Item(message, b"", order.reset)


def start_of(order: Order, first: int | None) -> int:
    """The place before the first that is meant."""
    return first or 0 if order.given is None and order.archived is None else 0


def coming(work: Work, order: Order, run: Run | None = None) -> Callable[[int, int], Op[list[Placed]]]:
    """What is meant after a place, a page at a time: of the file; or of what is kept here and in the archive, up
    to the bound, in the order in which it took effect."""
    given, archived = _unseen(order, run), Ahead(order.archived or iter(()))

    def page(place: int, bound: int) -> Op[list[Placed]]:
        if order.given is not None:
            return list(itertools.islice(given, PAGE))
        params = {"consumer": work.consumer, "place": place, "bound": bound, "limit": PAGE}
        rows = yield Fetch(Call(work.queries.replay_page, {**params, **order.chosen.words()}))
        found = {each.place: each for each in (_kept(work, row) for row in rows)}
        upto = max(found) if len(rows) == PAGE else bound
        older = archived.between(place, upto, order.chosen)
        if len(older) == PAGE:  # there may be more before the next that is kept here
            found = {at: each for at, each in found.items() if at <= older[-1].place}
        found |= {each.place: each for each in older if each.place not in found}
        return [found[at] for at in sorted(found)]

    return page


class Ahead:
    """What an archive has, in order, looked at one ahead."""

    def __init__(self, stream: Iterator[Placed]) -> None:
        self._stream = stream
        self._next = next(stream, None)

    def between(self, after: int, upto: int, chosen: Chosen) -> list[Placed]:
        """The next ones that are meant: up to a page, none that is younger."""
        found: list[Placed] = []
        while self._next is not None and self._next.place <= upto and len(found) < PAGE:
            each, self._next = self._next, next(self._stream, None)
            if each.place > after and each.item is not None and chosen.admits(each.item.message):
                found.append(each)
        return found


def _kept(work: Work, row: Any) -> Placed:
    seq, source, message_id, kind, fingerprint, key, payload, headers, content_type, provenance = row
    message = Message(
        id=message_id, type=kind, source=source, payload=bytes(payload), key=key, content_type=content_type,
        headers=unpack_headers(bytes(headers)), provenance=unpack_provenance(provenance), replay=True,
    )  # fmt: skip
    return Placed(seq, Item(message, bytes(fingerprint), work.handler(kind)))


def _unseen(order: Order, run: Run | None) -> Iterator[Placed]:
    """What the file has after the run's place; of lines that say the same message twice, the first.
    UsageError when it is another file."""
    seen: set[bytes] = set()
    for each in order.given or ():
        key = _digest(each)
        known = key in seen
        seen.add(key)
        if run is not None and each.place == run.place and run.mark != _mark(each):
            raise errors.UsageError(
                f"consumer {run.consumer!r}: run {run.id} has come to line {run.place:,} of another file than this; "
                "go on with that one, or give it up with --restart"
            )
        if known or (run is not None and each.place <= run.place):
            continue
        if each.item is None or order.chosen.admits(each.item.message):
            yield each


def _digest(placed: Placed) -> bytes:
    if placed.item is None:
        return f"line {placed.place}".encode()
    message = placed.item.message
    return hashlib.blake2b(
        f"{len(message.source)}:{message.source}{message.id}".encode(), digest_size=12
    ).digest()


def _mark(placed: Placed) -> str:
    return placed.item.message.id if placed.item is not None else ""


def _through(work: Work, run: Run, order: Order, chunk: list[Placed]) -> Op[list[Placed]]:
    """Get through a chunk; returns what its time was not enough for. Where one of many fails, each runs alone,
    so that the run stands right before the one that can't be handled."""
    done = yield from _step(work, run, order, chunk)
    if done or len(chunk) == 1:
        return chunk[done:]
    for each in chunk:
        yield from _step(work, run, order, [each])
    return []


def _step(work: Work, run: Run, order: Order, chunk: list[Placed]) -> Op[int]:
    came = yield from attempt(
        work,
        Chunk(
            run=run.id, place=run.place, bound=run.bound, placed=chunk, claims=order.given is not None,
            suppresses=run.policy == "suppress_effects", skips=order.skip_failures, act=order.act,
        ),
    )  # fmt: skip
    if came is None:
        return 0
    last = chunk[came.count - 1]
    run.place, run.mark = last.place, _mark(last)
    run.handled += came.handled
    run.skipped += came.skipped
    run.failed += came.failed
    run.suppressed += came.suppressed
    return came.count


def _touched(run: Run, result: str) -> Touched:
    return Touched(consumer=run.consumer, source="", id=run.id, result=result)


def _end(queries: Queries, run: Run, act: Act, result: str) -> Op[None]:
    """The run is over; on record like its beginning."""
    token = new_token()
    said = f"{result}: {run.handled} handled, {run.skipped} skipped, {run.failed} failed, {run.suppressed} suppressed"
    try:
        yield Begin(token)
        yield Execute((Call(queries.replay_end, {"run": run.id, "result": result}),))
        yield Commit(token, (audit(queries, act, [_touched(run, said)]),))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    run.ended = result
