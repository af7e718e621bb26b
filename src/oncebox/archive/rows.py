"""What is archived: one row per message that retention forgets, and where it lies.

`consumer=…/day=…/part-…parquet`: the day is that on which the message was received, in UTC, so that a row lies in
the same folder however often it is archived. A part's name says where in the order of effects its first payload
stands, how many rows it has, and what their digest is: the same rows have the same name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date
from hashlib import sha256
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from oncebox.core.archived import Archived

_NAME = re.compile(
    r"consumer=([^/]+)/day=(\d{4}-\d{2}-\d{2})/part-(\d{16,})-(\d+)-([0-9a-f]{32})\.parquet", re.ASCII
)


class Part(msgspec.Struct, frozen=True, order=True):
    """One file of the archive, as its name tells."""

    consumer: str
    day: date
    first: int
    """The first place in the order of effects that has a payload here; 0: there is none."""
    rows: int
    digest: str
    size: int = 0
    """Bytes, where the place says."""

    @property
    def name(self) -> str:
        """Its path below the archive's."""
        return (
            f"{folder(self.consumer)}day={self.day.isoformat()}/"
            f"part-{self.first:016d}-{self.rows}-{self.digest}.parquet"
        )


def folder(consumer: str) -> str:
    """Where a consumer's parts lie. Quoted: a name may hold a slash."""
    return f"consumer={quote(consumer, safe='')}/"


def part_of(name: str, size: int = 0) -> Part | None:
    """The part of that name, or None for a file that is no part."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    consumer, day, first, rows, digest = found.groups()
    try:
        return Part(unquote(consumer), date.fromisoformat(day), int(first), int(rows), digest, size)
    except ValueError:
        return None


def part_for(rows: Sequence[Archived]) -> Part:
    """The part that these rows make: all of one consumer, and of one day, in the order of `in_order`."""
    consumer, day = rows[0].consumer, day_of(rows[0])
    first = min((row.place for row in rows if row.place is not None), default=0)
    return Part(consumer, day, first, len(rows), digest(rows))


def day_of(row: Archived) -> date:
    """The day it was received, in UTC."""
    return row.received.astimezone(UTC).date()


def in_order(row: Archived) -> tuple[Any, ...]:
    """How rows are sorted in a part: those with a payload as they took effect, after those without."""
    return (row.place or 0, row.received, row.source, row.id)


def digest(rows: Sequence[Archived]) -> str:
    """Of every value of every row, in their order."""
    return sha256(msgspec.msgpack.encode(rows)).hexdigest()[:32]
