"""Rows into the archive, and the look that shows that they are there."""

from __future__ import annotations

from collections.abc import Sequence

from oncebox.archive.parquet import decode, encode
from oncebox.archive.places import Place
from oncebox.archive.rows import Part, digest, in_order, part_for
from oncebox.core.archived import Archived
from oncebox.errors import ArchiveError


def keep(place: Place, rows: Sequence[Archived]) -> Part:
    """Write rows of one consumer and one day as one part, read it back, and compare.

    When this returns, the rows may be deleted elsewhere. ArchiveError: they may not. The same rows make the same
    part under the same name, so that a process that was killed in between leaves nothing but what the next
    writes again.
    """
    ordered = sorted(rows, key=in_order)
    part = part_for(ordered)
    place.put(part.name, encode(ordered, part.digest))
    verify(place, part)
    return part


def verify(place: Place, part: Part) -> list[Archived]:
    """The rows of a part, read from where it lies; ArchiveError unless their count and digest are its name's."""
    found = decode(place.get(part.name), part.name)
    if len(found) != part.rows:
        raise ArchiveError(f"archive: {part.name} has {len(found):,} rows, not {part.rows:,}")
    if digest(found) != part.digest:
        raise ArchiveError(f"archive: {part.name} was changed: its rows do not have the digest of its name")
    return found
