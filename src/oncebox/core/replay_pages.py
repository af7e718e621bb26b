"""What a replay is to handle, page after page: of the ledger, of an archive, of a file."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from oncebox import errors
from oncebox.codec import unpack_headers, unpack_provenance
from oncebox.core.replay_terms import Chosen, Order, Run
from oncebox.core.replaying import Placed
from oncebox.core.steps import Call, Fetch, Op
from oncebox.core.work import Item, Work
from oncebox.message import Message

PAGE = 100


def start_of(order: Order, first: int | None) -> int:
    """The place before the first that is meant."""
    return first or 0 if order.given is None and order.archived is None else 0


def check_archive(work: Work, order: Order, bound: int) -> None:
    """Places are this database's own: an archive that begins beyond them is another's, and UsageError says so."""
    if order.archived is None:
        return
    first = next(order.archived, None)
    order.archived = itertools.chain(() if first is None else (first,), order.archived)
    if first is not None and first.place > bound:
        raise errors.UsageError(
            f"consumer {work.consumer!r}: the archive is another database's, which has counted further than this one "
            f"(from {first.place:,}, here up to {bound:,}); bring it here with oncebox archive restore, then replay"
        )


def coming(work: Work, order: Order, run: Run | None = None) -> Callable[[int, int], Op[list[Placed]]]:
    """What is meant after a place, a page at a time: of the file; or of what is kept here and in the archive, up
    to the bound, in the order in which it took effect."""
    meant = _meant(work, order.chosen)
    given, archived = _unseen(order, run, meant), Ahead(order.archived or iter(()), meant)

    def page(place: int, bound: int) -> Op[list[Placed]]:
        if order.given is not None:
            return list(itertools.islice(given, PAGE))
        while True:
            rows = yield Fetch(_next(work, order.chosen, place, bound))
            here = [_kept(work, row) for row in rows]
            upto = here[-1].place if len(here) == PAGE else bound
            found = {each.place: each for each in here if meant(each)}
            older = archived.between(place, upto)
            if len(older) == PAGE:  # there may be more before the next that is kept here
                found = {at: each for at, each in found.items() if at <= older[-1].place}
            found |= {each.place: each for each in older if each.place not in found}
            if found or len(here) < PAGE:
                return [found[at] for at in sorted(found)]
            place = upto

    return page


def _next(work: Work, chosen: Chosen, place: int, bound: int) -> Call:
    """The next of what is kept. What an ordered consumer calls a key is in no column."""
    words = {**chosen.words(), **({"key": None} if work.consumer in work.outlets.placings else {})}
    params = {"consumer": work.consumer, "place": place, "bound": bound, "limit": PAGE}
    return Call(work.queries.replay_page, {**params, **words})


def _meant(work: Work, chosen: Chosen) -> Callable[[Placed], bool]:
    placing = work.outlets.placings.get(work.consumer) if chosen.key is not None else None

    def meant(each: Placed) -> bool:
        if each.item is None:
            return True
        try:
            lane = placing.place(each.item.message)[0] if placing is not None else None
        except errors.MessageError:
            lane = None
        return chosen.admits(each.item.message, lane)

    return meant


class Ahead:
    """What an archive has, in order, looked at one ahead."""

    def __init__(self, stream: Iterator[Placed], meant: Callable[[Placed], bool]) -> None:
        self._stream = stream
        self._meant = meant
        self._next = next(stream, None)

    def between(self, after: int, upto: int) -> list[Placed]:
        """The next ones that are meant: up to a page, none that is younger."""
        found: list[Placed] = []
        while self._next is not None and self._next.place <= upto and len(found) < PAGE:
            each, self._next = self._next, next(self._stream, None)
            if each.place > after and self._meant(each):
                found.append(each)
        return found


def _kept(work: Work, row: Any) -> Placed:
    seq, source, message_id, kind, fingerprint, key, payload, headers, content_type, provenance = row
    message = Message(
        id=message_id, type=kind, source=source, payload=bytes(payload), key=key, content_type=content_type,
        headers=unpack_headers(bytes(headers)), provenance=unpack_provenance(provenance), replay=True,
    )  # fmt: skip
    return Placed(seq, Item(message, bytes(fingerprint), work.handler(kind)))


def _unseen(order: Order, run: Run | None, meant: Callable[[Placed], bool]) -> Iterator[Placed]:
    """What the file has after the run's place; of lines that say the same message twice, the first.
    UsageError when it is another file."""
    seen: set[bytes] = set()
    for each in order.given or ():
        key = _digest(each)
        known = key in seen
        seen.add(key)
        if run is not None and each.place == run.place and run.mark != mark_of(each):
            raise errors.UsageError(
                f"consumer {run.consumer!r}: run {run.id} has come to line {run.place:,} of another file than this; "
                "go on with that one, or give it up with --restart"
            )
        if known or (run is not None and each.place <= run.place):
            continue
        if meant(each):
            yield each


def _digest(placed: Placed) -> bytes:
    if placed.item is None:
        return f"line {placed.place}".encode()
    message = placed.item.message
    return hashlib.blake2b(
        f"{len(message.source)}:{message.source}{message.id}".encode(), digest_size=12
    ).digest()


def mark_of(placed: Placed) -> str:
    """What tells a place of this file from the same place of another."""
    return placed.item.message.id if placed.item is not None else ""
