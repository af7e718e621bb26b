"""What lies in an archive: its parts, its rows, and its messages as they took effect.

A process that is killed after it has written a part and before it has deleted the rows may leave rows that the
next one writes again, in another part. Whoever reads gets each once.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby

from oncebox.archive.places import Place, open_place
from oncebox.archive.rows import Part, folder, part_of
from oncebox.archive.writing import verify
from oncebox.core.archived import Archived

Where = str | os.PathLike[str] | Place


def parts(
    url: Where, *, consumer: str | None = None, since: datetime | None = None, until: datetime | None = None
) -> list[Part]:
    """The parts that hold messages received from `since` to `until`, by consumer, day and order; reads none."""
    place = _place(url)
    first, last = (at and _utc(at).date() for at in (since, until))
    found = (part_of(*each) for each in place.names(folder(consumer) if consumer is not None else ""))
    return sorted(
        part
        for part in found
        if part is not None
        and (consumer is None or part.consumer == consumer)
        and (first is None or part.day >= first)
        and (last is None or part.day <= last)
    )


def rows(
    url: Where, *, consumer: str | None = None, since: datetime | None = None, until: datetime | None = None
) -> Iterator[Archived]:
    """Every archived row once, with its payload or without, day after day. Received from `since`, before `until`.

    A key that took effect in two windows is there twice, as received on each of the days. ArchiveError at a
    part that is missing, damaged or changed.
    """
    place = _place(url)
    found = parts(place, consumer=consumer, since=since, until=until)
    for _, group in groupby(found, key=lambda part: (part.consumer, part.day)):
        seen: set[tuple[str, str]] = set()
        for part in group:
            for row in _within(verify(place, part), since, until):
                if (row.source, row.id) not in seen:
                    seen.add((row.source, row.id))
                    yield row


def messages(
    url: Where, *, consumer: str, since: datetime | None = None, until: datetime | None = None
) -> Iterator[Archived]:
    """What has its payload, each once, in the order in which it took effect; see `Archived.message`.

    Received from `since`, before `until`; without either, everything. Rows without a payload are left out. Holds
    no more than the parts that overlap. ArchiveError at a part that is missing, damaged or changed.
    """
    place = _place(url)
    waiting = [part for part in parts(place, consumer=consumer, since=since, until=until) if part.first]
    waiting.sort(key=lambda part: (-part.first, part.day))
    heap: list[tuple[int, int, Archived, Iterator[Archived]]] = []
    at, seen = 0, set[tuple[str, str]]()
    while heap or waiting:
        while waiting and (not heap or waiting[-1].first <= heap[0][0]):
            # By name, before anything of it is read: a part is opened when its turn has come.
            found = _within(verify(place, waiting.pop()), since, until)
            _push(heap, (row for row in found if row.place), len(waiting))
        if not heap:
            continue
        here, number, row, stream = heapq.heappop(heap)
        _push(heap, stream, number)
        if here != at:
            at, seen = here, set()
        # The same place in two parts: written twice, because a process was killed in between.
        if (row.source, row.id) not in seen:
            seen.add((row.source, row.id))
            yield row


def _push(
    heap: list[tuple[int, int, Archived, Iterator[Archived]]], stream: Iterator[Archived], n: int
) -> None:
    row = next(stream, None)
    if row is not None:
        heapq.heappush(heap, (row.place or 0, n, row, stream))


def _within(found: Iterable[Archived], since: datetime | None, until: datetime | None) -> Iterator[Archived]:
    since, until = (at and _utc(at) for at in (since, until))
    return (
        row
        for row in found
        if (since is None or row.received >= since) and (until is None or row.received < until)
    )


def _utc(at: datetime) -> datetime:
    """A time without a zone is meant as UTC."""
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _place(url: Where) -> Place:
    return open_place(url) if isinstance(url, (str, os.PathLike)) else url
