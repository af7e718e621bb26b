"""Claim and leave: what the guard does at the two ends of a block, step by step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from random import getrandbits
from typing import Any

from oncebox import errors
from oncebox.core.guard import refusals
from oncebox.core.guard.steps import Answer, Ask, Entry, Held, Hold, Join, Look, Release, View
from oncebox.core.outcomes import OBSERVED, Status
from oncebox.core.queries import Queries
from oncebox.core.steps import Call, Execute, Fetch, Op
from oncebox.message import MessageKey

_UNFINISHED = 1
_STATES = ("done", "unfinished", "discarded", "stale", "suppressed")
_SAVEPOINT = "oncebox_claim_"
_MARKED = " oncebox:"
_serials = itertools.count(1)


def claim(schema: str, entry: Entry, *, observe: bool = False) -> Op[Answer]:
    """Insert the key, or say what is known about it. One statement where the key is new.

    Where it only observes, what is known is counted, and is to run all the same.
    """
    queries: Queries = yield Join(schema)
    serial = next(_serials)
    key = entry.key
    params = {
        "consumer": key.consumer,
        "source": key.source,
        "message_id": key.id,
        "type": entry.type,
        "fingerprint": entry.fingerprint(),
        "token": f"{getrandbits(32):08x}",
        "serial": str(serial),
    }
    claimed = yield Fetch(Call(queries.guard_claim, params))
    if claimed:
        # A database that has no mark of its own gets a savepoint instead.
        mark = _shown(_text(claimed[0][0]))
        savepoint = "" if mark else f"{_SAVEPOINT}{serial}"
        yield Hold(entry.key, savepoint)
        return Answer(queries, True, mark=mark or savepoint)
    known = yield from _look_up(queries, [entry.key])
    if not known:
        raise refusals.lost(entry.key)
    answer = yield from _answered(queries, entry, known[entry.key])
    if observe:
        yield from _observe(queries, [(entry, answer)])
    if answer.error is not None:
        raise answer.error
    return answer


def claim_many(schema: str, entries: Sequence[Entry], *, observe: bool = False) -> Op[list[Answer]]:
    """One answer per entry, in order. An error that concerns one entry is in its answer."""
    queries: Queries = yield Join(schema)
    consumer = entries[0].key.consumer
    firsts: dict[MessageKey, Entry] = {}
    for entry in entries:
        firsts.setdefault(entry.key, entry)
    # Sorted: two batches that insert the same ids in different order would deadlock.
    incoming = [
        {"source": key.source, "message_id": key.id} | _contents(entry)
        for key, entry in sorted(firsts.items())
    ]
    params = {"consumer": consumer, "rows": incoming} | _mark(next(_serials))
    rows = yield Fetch(Call(queries.guard_claim_many, params))
    claimed = {MessageKey(consumer, _text(row[0]), _text(row[1])) for row in rows}
    missing = [key for key in firsts if key not in claimed]
    known = (yield from _look_up(queries, missing)) if missing else {}
    answers: list[Answer] = []
    for entry in entries:
        if entry.key in known:
            answers.append((yield from _answered(queries, entry, known[entry.key])))
        elif entry.key not in claimed:
            raise refusals.lost(entry.key)
        elif entry is firsts[entry.key]:
            yield Hold(entry.key)
            answers.append(Answer(queries, True))
        else:
            answers.append(_repeated(queries, entry, firsts[entry.key]))
    if observe:
        yield from _observe(queries, list(zip(entries, answers, strict=True)))
    return answers


def _observe(queries: Queries, found: Sequence[tuple[Entry, Answer]]) -> Op[None]:
    """Let run what is known to have run, and count it, in the transaction of what it does."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for entry, answer in found:
        if isinstance(answer.error, errors.PayloadConflict):
            answer.observed, answer.error = "conflict", None
            outcome = OBSERVED[Status.DEAD]
        elif answer.error is None and not answer.first and answer.state == "done":
            answer.observed = "duplicate"
            outcome = OBSERVED[Status.DUPLICATE]
        else:
            continue
        answer.first = True
        counts[entry.key.consumer, entry.type, str(outcome)] += 1
    if counts:
        # Sorted: two transactions that count the same must not wait for each other in a circle.
        rows = [
            {"consumer": consumer, "type": kind, "outcome": outcome, "n": n}
            for (consumer, kind, outcome), n in sorted(counts.items())
        ]
        yield Execute((Call(queries.tally, {"rows": rows}),))


def verify(answer: Answer, key: MessageKey) -> Op[None]:
    """Is this still the transaction that took the claim? Costs nothing where the client can tell."""
    mark = answer.mark
    view: View = yield Look()
    if view.failed:
        raise refusals.aborted(key)
    if not view.open:
        raise refusals.ended(key)
    if mark.startswith(_SAVEPOINT):
        try:
            yield Release(mark)
        except errors.TransactionEnded as error:
            raise refusals.ended(key) from error
        return
    current = _shown(view.mark)
    if current == mark:
        return
    if not _carries(current, mark):
        # The client may not know: a proxy that reports nothing, a statement that set application_name.
        try:
            rows = yield Ask()
        except errors.TransactionAborted as error:
            raise refusals.aborted(key) from error
        current = _text(rows[0][0] or "")
        if not _carries(current, mark):
            raise refusals.ended(key)
    if answer.first and current != mark:
        # A claim was made since, and its mark says nothing about a savepoint that took this one along before.
        rows = yield Fetch(_lookup(answer.queries, [key]))
        if not rows or not rows[0][-1]:
            raise refusals.ended(key)


def leave(
    answer: Answer, key: MessageKey, body: bytes | None, *, read: bool, error: BaseException | None
) -> Op[None]:
    """The block is over. It looked at its claim and did not raise, or it left something to mark."""
    if error is None and read:
        yield from _finish(answer, key, body)
        return
    marked = True
    with suppress(Exception):  # the block's own error is the one to see
        marked = yield from _fail(answer, key)
    if error is None:
        raise refusals.unread(key)
    if not marked:
        error.add_note(refusals.too_late(key))


def _finish(answer: Answer, key: MessageKey, body: bytes | None) -> Op[None]:
    """The block ended well: its transaction must be the same, and its result is kept."""
    if answer.mark:
        yield from verify(answer, key)
    elif (yield Look()).failed:
        raise refusals.aborted(key)
    if body is not None:
        yield Execute((Call(answer.queries.keep_result, _params(key) | {"body": body}),))


def _fail(answer: Answer, key: MessageKey) -> Op[bool]:
    """The block raised: mark the row, in case the transaction is committed all the same.

    False if the transaction had ended before, so that there is nothing left to mark.
    """
    if not answer.first or answer.observed:
        return True
    try:
        yield from verify(answer, key)
    except errors.TransactionAborted:
        return True
    except errors.TransactionEnded:
        return False
    yield Execute((Call(answer.queries.mark_unfinished, _params(key)),))
    return True


def resolve(schema: str, key: MessageKey, done: bool) -> Op[None]:
    """Someone has looked at an unfinished claim: it counts as done, or it may run again."""
    queries: Queries = yield Join(schema)
    known = yield from _look_up(queries, [key])
    if not known or known[key][2] != _UNFINISHED:
        raise refusals.settled(key)
    yield Execute((Call(queries.mark_finished if done else queries.unclaim, _params(key)),))


def _answered(queries: Queries, entry: Entry, row: Sequence[Any]) -> Op[Answer]:
    """What a row that was found means for this delivery."""
    stored_type, stored_fingerprint, state, lazy, queued, reason, body, ours = row
    answer = Answer(queries, False, state=_STATES[state], body=None if body is None else bytes(body))
    # A duplicate leaves no mark, but a claim before it may have: what is lost in its block is that.
    answer.mark = _shown((yield Look()).mark)
    clash = entry.clash(_text(stored_type), bytes(stored_fingerprint))
    if clash:
        answer.error = refusals.conflict(entry.key, clash)
    elif state == _UNFINISHED:
        answer.error = refusals.unfinished(entry.key)
    elif (yield Held(entry.key, ours, _lookup(queries, [entry.key]))):
        answer.error = refusals.already(entry.key)
    elif reason is not None:
        answer.state, answer.reason = "dead", _text(reason)
    elif queued:
        answer.state = "waiting"
    if lazy and answer.error is None:
        # The first delivery's commit may not be on disk yet. The caller commits before it acks, and
        # that commit flushes the first's too, but only if it has something to write.
        yield Fetch(Call(queries.vouch, {"rows": [_params(entry.key)]}))
    return answer


def _repeated(queries: Queries, entry: Entry, first: Entry) -> Answer:
    """A second delivery inside one batch is compared with the one that stands for both."""
    clash = entry.clash(first.type, first.fingerprint())
    error = refusals.conflict(entry.key, clash) if clash else None
    return Answer(queries, False, state="done", error=error)


def _look_up(queries: Queries, keys: list[MessageKey]) -> Op[dict[MessageKey, Sequence[Any]]]:
    """What the ledger has about keys that turned out not to be new."""
    rows = yield Fetch(_lookup(queries, keys))
    return {MessageKey(keys[0].consumer, _text(row[0]), _text(row[1])): row[2:] for row in rows}


def _lookup(queries: Queries, keys: list[MessageKey]) -> Call:
    rows = [{"source": key.source, "message_id": key.id} for key in keys]
    return Call(queries.guard_lookup, {"consumer": keys[0].consumer, "rows": rows})


def _shown(application_name: str) -> str:
    """The mark at the end of an application_name, or nothing."""
    return application_name.partition(_MARKED)[2]


def _carries(current: str, mark: str) -> bool:
    """Does `current` show the mark's transaction, at or after the mark's claim?

    A lower number than the claim's means that a savepoint took the claim along.
    """
    transaction, _, claimed = mark.partition(".")
    now, _, latest = current.partition(".")
    return now == transaction and latest.isdigit() and int(latest) >= int(claimed)


def _mark(serial: int) -> dict[str, str]:
    return {"token": f"{getrandbits(32):08x}", "serial": str(serial)}


def _contents(entry: Entry) -> dict[str, Any]:
    return {"type": entry.type, "fingerprint": entry.fingerprint()}


def _params(key: MessageKey) -> dict[str, Any]:
    return {"consumer": key.consumer, "source": key.source, "message_id": key.id}


def _text(value: Any) -> str:
    """Text as text: some encodings and settings make drivers hand out bytes."""
    return value if isinstance(value, str) else bytes(value).decode()
