"""Where the ledger's rows lie: in one table or, on PostgreSQL where somebody asked for it, in partitions.

A consumer whose ids carry their time may have a partition for each day of them, and one for the rest. The day says
only where a row lies; whether it may be forgotten is asked of every row, wherever it lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from oncebox.core.queries import Queries
from oncebox.core.steps import Call, Fetch, Op

KINDS = ("uuid7", "ulid", "date")
"""How ids begin: with the milliseconds of a UUIDv7 or a ULID, or with the day itself, as in 2026-11-16."""
AHEAD_DAYS = 7
"""For so many days after today there are partitions already."""
_SHIFT = 31
"""A place in a partition is its number, and so many bits for its pages."""
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Leaf(msgspec.Struct, frozen=True):
    """A table that holds rows of the ledger."""

    name: str
    pages: int
    """What there is to walk: pages, on SQLite rows."""
    first: int = 0
    """The walk's place at its beginning."""
    consumer: str = ""
    """Whose rows it holds, where it holds one consumer's only."""
    day: date | None = None

    @property
    def end(self) -> int:
        return self.first + self.pages

    def is_over(self, windows: Mapping[str, float], late_seconds: float, now: float) -> bool:
        """Whether its day lies before the window: before that, there is nothing in it to look for."""
        if self.day is None:
            return True
        if self.consumer not in windows:
            return False
        end = midnight(self.day + timedelta(days=1)).timestamp()
        return end + windows[self.consumer] + late_seconds < now


class Split(msgspec.Struct, frozen=True):
    """A consumer whose rows lie in partitions."""

    consumer: str
    ids: str
    """One of `KINDS`."""
    name: str
    leaves: tuple[Leaf, ...]

    @property
    def rest(self) -> str:
        """The partition for all that is in no day's: other ids, days that are gone, clocks that are ahead."""
        return f"{self.name}_rest"

    @property
    def days(self) -> list[date]:
        return sorted(leaf.day for leaf in self.leaves if leaf.day is not None)

    def missing(self, now: float) -> list[date]:
        """Days from today on that have no partition yet."""
        wanted = (today(now) + timedelta(days=n) for n in range(AHEAD_DAYS + 1))
        return [day for day in wanted if day not in self.days]


class Tree(msgspec.Struct, frozen=True):
    """The whole ledger."""

    leaves: tuple[Leaf, ...]
    """In the order of the walk."""
    splits: tuple[Split, ...] = ()
    now: float = 0.0
    """The database's clock."""


def read_tree(queries: Queries, end: int) -> Op[Tree]:
    """What the ledger is made of; `end` is how much there is to walk where it is one table."""
    if queries.leaves is None:
        return Tree((Leaf("ledger", end),))
    return tree((yield Fetch(Call(queries.leaves, {}))))


def tree(rows: Sequence[Sequence[Any]]) -> Tree:
    """From what the catalog says: number, name, parent, whether it has partitions, note, pages, clock."""
    notes = {name: msgspec.json.decode(note or "{}") for _, name, _, _, note, _, _ in rows}
    parents = {name for _, name, _, is_parent, *_ in rows if is_parent}
    if not parents:
        [(_, name, _, _, _, pages, now)] = rows
        return Tree((Leaf(name, int(pages)),), (), float(now))
    leaves = []
    for number, name, parent, is_parent, _, pages, _ in sorted(rows, key=lambda row: row[0]):
        if not is_parent:
            day = notes[name].get("day")
            whose = notes.get(parent, {}).get("consumer", "")
            # At least a page each: the walk must come by to drop what is empty.
            size, first = max(int(pages), 1), number << _SHIFT
            leaf = Leaf(name, size, first, whose, date.fromisoformat(day) if day else None)
            leaves.append((parent, leaf))
    splits = [
        Split(note["consumer"], note["ids"], name, tuple(leaf for parent, leaf in leaves if parent == name))
        for name, note in sorted(notes.items())
        if name in parents and "consumer" in note
    ]
    return Tree(tuple(leaf for _, leaf in leaves), tuple(splits), float(rows[0][6]))


def today(now: float) -> date:
    """The day of a time, in UTC."""
    return datetime.fromtimestamp(now, UTC).date()


def midnight(day: date) -> datetime:
    """When a day begins, in UTC."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def lowest(ids: str, day: date) -> str:
    """What no id that was made on that day or later is less than, compared byte by byte."""
    if ids == "date":
        return day.isoformat()
    milliseconds = int(midnight(day).timestamp()) * 1000
    if ids == "uuid7":
        text = f"{milliseconds:012x}"
        return f"{text[:8]}-{text[8:]}"
    return "".join(_CROCKFORD[milliseconds >> shift & 31] for shift in range(45, -1, -5))
