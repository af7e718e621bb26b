"""One step of a replay: a few messages, their effects and the run's new place, in one transaction."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from oncebox import errors
from oncebox.core.audit import Act, Touched, audit
from oncebox.core.batch import Run as Ran
from oncebox.core.batch import Undo, handle_all
from oncebox.core.failure import RERUNS_MAX, STATE_DISCARDED, STATE_SUPPRESSED
from oncebox.core.keeping import keeping
from oncebox.core.outcomes import Status
from oncebox.core.outgoing import outgoing_calls
from oncebox.core.steps import Begin, Call, Commit, Fetch, Op, Rollback
from oncebox.core.work import Item, Work

_DONE = (0, STATE_SUPPRESSED)


class Placed(msgspec.Struct, frozen=True):
    """A message and its place: where it was kept, or its line. Without an item, `problem` says why."""

    place: int
    item: Item | None
    problem: str = ""


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """What a step is to do."""

    run: str
    place: int
    """Where the run stands before it."""
    bound: int
    placed: list[Placed]
    claims: bool
    """They come from a file: what is new here is claimed, and what is not done here is left alone."""
    suppresses: bool
    skips: bool
    act: Act


class Came(msgspec.Struct):
    """What came of a step."""

    count: int = 0
    """How many of the chunk it is through with."""
    handled: int = 0
    skipped: int = 0
    failed: int = 0
    suppressed: int = 0


class _Alone(Exception):
    """One of many failed: roll back, and each runs alone."""


def attempt(work: Work, chunk: Chunk) -> Op[Came | None]:
    """Run the chunk's handlers and move the run on, in one transaction. None: one of many is in the way, and
    each is to be tried alone. ReplayFailed for one that is alone, unless failures are skipped."""
    for rerun in range(RERUNS_MAX + 1):
        token = work.token()
        try:
            came, calls = yield from _handle(work, chunk, token)
            yield Commit(token, calls)
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            yield Rollback()
            many = len(chunk.placed) > 1
            if many and isinstance(error, Undo) and isinstance(error.__cause__, errors.TransactionEnded):
                raise _ended(work, error) from error.__cause__
            if many and isinstance(error, (_Alone, Undo, errors.Conflict, errors.LockBusy)):
                return None
            if isinstance(error, Undo):
                return (yield from _failed(work, chunk, error.run.failed[0][1]))
            if isinstance(error, (errors.Conflict, errors.LockBusy)) and rerun < RERUNS_MAX:
                continue
            raise
        return came
    raise AssertionError("the last turn returns or raises")


def _handle(work: Work, chunk: Chunk, token: str) -> Op[tuple[Came, tuple[Call, ...]]]:
    """Open, see what is meant, run it; and what is to be written with the commit."""
    yield from _open(work, chunk, token)
    problem = next((each.problem for each in chunk.placed if each.item is None), "")
    if problem:
        raise _Alone if len(chunk.placed) > 1 else _unreadable(problem)
    items = [each.item for each in chunk.placed if each.item is not None]
    meant, fresh = (yield from _meant(work, chunk, items)) if chunk.claims else (items, set())
    called = [item for item in meant if item.handler is not None and item.handler.effect is not None]
    ran = yield from handle_all(work, [item for item in meant if item not in called])
    discarded = [item for item, error in ran.failed if isinstance(error, errors.Discard)]
    failed = [(item, error) for item, error in ran.failed if item not in discarded]
    if failed and not chunk.skips:
        raise _Alone
    through = len(items) - len(ran.left) if not ran.left else items.index(ran.left[0])
    called = [item for item in called if items.index(item) < through]
    came = Came(
        count=through, handled=len(ran.done), failed=len(failed),
        skipped=sum(item not in meant for item in items[:through]) + len(discarded),
    )  # fmt: skip
    calls, suppressed = _sent(work, chunk, ran, called)
    came.suppressed = suppressed.total()
    calls += _fresh(work, fresh, ran, discarded, called, suppressed)
    calls += _unclaimed(work, fresh, items[through:], [item for item, _ in failed])
    calls += (_moved(chunk, work, came),)
    if failed:
        touched = [_touched(work, item, f"failed: {type(error).__name__}") for item, error in failed]
        calls += (audit(work.queries, chunk.act, touched),)
    return came, calls


def _open(work: Work, chunk: Chunk, token: str) -> Op[None]:
    fence = work.queries.fence
    calls = (Call(fence, {"slot": f"{work.worker}/{work.slot}"}),) if fence is not None else ()
    yield Begin(token, calls)
    rows = yield Fetch(Call(work.queries.replay_hold, {"run": chunk.run}))
    if not rows or rows[0][0] != chunk.place:
        raise errors.UsageError(
            f"consumer {work.consumer!r}: another process goes on with run {chunk.run}, or has ended it; "
            "this one stops"
        )


def _meant(work: Work, chunk: Chunk, items: list[Item]) -> Op[tuple[list[Item], set[Any]]]:
    """Of a file: what is new here, claimed, and what was done before the run began. Nobody else can be about to
    finish one of the claimed; whoever has one in hand is waited for."""
    keys = [{"source": item.message.source, "message_id": item.message.id} for item in items]
    rows = [
        {**key, "type": item.message.type, "fingerprint": item.fingerprint}
        for key, item in {_key(item): (key, item) for key, item in zip(keys, items, strict=True)}.values()
    ]
    claimed = yield Fetch(work.call(work.queries.claim_many, consumer=work.consumer, rows=rows))
    fresh = {(row[0], row[1]) for row in claimed}
    known = yield Fetch(work.call(work.queries.replay_known, consumer=work.consumer, rows=keys))
    covered = {
        (row[0], row[1])
        for row in known
        if row[3] in _DONE and not row[4] and (row[5] is None or row[5] <= chunk.bound)
    }
    marks = {(row[0], row[1]): bytes(row[2]) for row in known}
    meant: dict[Any, Item] = {}
    for item in items:
        key = _key(item)
        if key in covered and marks[key] in (b"", item.fingerprint):
            meant.setdefault(key, item)
    return list(meant.values()), fresh


def _sent(work: Work, chunk: Chunk, ran: Ran, called: list[Item]) -> tuple[tuple[Call, ...], Counter[Item]]:
    """What the handlers send, or how much of it is left out, with a line for the counts of the minute."""
    if not chunk.suppresses:
        return outgoing_calls(work, ran.done), Counter()
    left_out = Counter({item: len(item.publications) + len(item.sendings) for item in ran.done})
    left_out = +left_out + Counter(called)
    kinds = Counter(item.message.type for item in left_out)
    if not kinds:
        return (), left_out
    rows = [
        {"consumer": work.consumer, "type": kind, "outcome": str(Status.SUPPRESSED), "n": n}
        for kind, n in sorted(kinds.items())
    ]
    return (work.call(work.queries.tally, rows=rows),), left_out


def _fresh(
    work: Work,
    fresh: set[Any],
    ran: Ran,
    discarded: list[Item],
    called: list[Item],
    suppressed: Counter[Item],
) -> tuple[Call, ...]:
    """What the ledger says of those that were new."""
    done = [item for item in ran.done if _key(item) in fresh]
    states = [
        (item, STATE_SUPPRESSED) for item in (*done, *called) if _key(item) in fresh and suppressed[item]
    ]
    states += [(item, STATE_DISCARDED) for item in discarded if _key(item) in fresh]
    calls = tuple(work.keyed(work.queries.set_state, item, state=state) for item, state in states)
    return (*keeping(work, done), *calls)


def _unclaimed(work: Work, fresh: set[Any], left: list[Item], failed: list[Item]) -> tuple[Call, ...]:
    """What was claimed and not handled is as new as before."""
    those = {_key(item): item for item in (*left, *failed) if _key(item) in fresh}
    return tuple(work.keyed(work.queries.unclaim, item) for item in those.values())


def _ended(work: Work, undo: Undo) -> errors.ReplayFailed:
    """Run alone, and behaving, each would count as replayed, whatever was written past the end."""
    ids = [item.message.id for item, _ in undo.run.failed]
    return errors.ReplayFailed(
        f"consumer {work.consumer!r}, ids {ids[0]!r} to {ids[-1]!r}: their handler ended its transaction in a replay, "
        "and what it wrote afterwards may be committed. Mend it and give the same command again"
    )


def _failed(work: Work, chunk: Chunk, error: Exception) -> Op[Came]:
    """The only message of its transaction failed: on record and passed over, or the run ends here."""
    placed = chunk.placed[0]
    came = Came(count=1, skipped=1) if isinstance(error, errors.Discard) else Came(count=1, failed=1)
    if came.failed and not chunk.skips:
        what = f"id {placed.item.message.id!r}" if placed.item is not None else f"line {placed.place:,}"
        raise errors.ReplayFailed(
            f"consumer {work.consumer!r}, {what}: {type(error).__name__} in a replay; what came before it is done. "
            "Mend it and give the same command again, or pass such messages over with --skip-failures"
        ) from error
    token = work.token()
    calls: tuple[Call, ...] = (_moved(chunk, work, came),)
    if came.failed and placed.item is not None:
        calls += (
            audit(work.queries, chunk.act, [_touched(work, placed.item, f"failed: {type(error).__name__}")]),
        )
    try:
        yield from _open(work, chunk, token)
        yield Commit(token, calls)
    except BaseException as lost:
        if not isinstance(lost, GeneratorExit):
            yield Rollback()
        raise
    return came


def _unreadable(problem: str) -> Undo:
    ran = Ran()
    ran.failed.append((None, errors.MessageError(problem)))  # type: ignore[arg-type]
    return Undo(ran)


def _moved(chunk: Chunk, work: Work, came: Came) -> Call:
    last = chunk.placed[came.count - 1]
    mark = last.item.message.id if last.item is not None else ""
    counts = {word: getattr(came, word) for word in ("handled", "skipped", "failed", "suppressed")}
    return Call(work.queries.replay_move, {"run": chunk.run, "place": last.place, "mark": mark, **counts})


def _touched(work: Work, item: Item, result: str) -> Touched:
    return Touched(consumer=work.consumer, source=item.message.source, id=item.message.id, result=result)


def _key(item: Item) -> tuple[str, str]:
    return (item.message.source, item.message.id)
