"""Replay: what was handled once is handled again, once per run.

A run covers what was done when it began, and nothing that is finished later: that has its effect by itself.
How far it is moves on in the transaction of the effects, so that a killed run goes on where it was, and no
message takes effect twice in it. What comes from a file may be new here; it is then claimed like a delivery.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from oncebox import errors
from oncebox.core.audit import Act, Touched, audit
from oncebox.core.failure import RERUNS_MAX
from oncebox.core.queries import Queries
from oncebox.core.replay_pages import check_archive, coming, mark_of, start_of
from oncebox.core.replay_terms import Order, Run, check, nothing_kept
from oncebox.core.replaying import Chunk, Placed, attempt
from oncebox.core.steps import Begin, Call, Commit, Execute, Fetch, Handle, Op, Rollback
from oncebox.core.work import Item, Work, new_token
from oncebox.message import Message

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
    bound, first = (yield Fetch(Call(queries.replay_bound, {"consumer": consumer})))[0]
    if order.given is None and order.archived is None and first is None:
        raise errors.UsageError(nothing_kept(work))
    check_archive(work, order, bound)
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
    run.place, run.mark = last.place, mark_of(last)
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
