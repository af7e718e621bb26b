"""Where a message lies in a partition, and whether that partition is the one its watermark was made for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from oncebox.core.work import Item


class Place(NamedTuple):
    """Where a message lies in a log that is read in order."""

    topic: str
    partition: int
    offset: int
    after: int = -1
    """The offset of the message that was read before it; -1 for the first of an assignment, before which the
    consumer group has finished everything."""
    raw: bytes = b""
    stamp: int = 0
    """The log's own timestamp of it, in milliseconds."""
    topic_id: str = ""
    """Tells a topic from another one of its name; empty where the cluster does not say."""
    end: int | None = None
    """Where the partition ended when it was asked; None: not known."""
    asked: float = 0.0
    """When that was, on the monotonic clock."""

    def digest(self) -> bytes:
        """What tells this message from another one at its place."""
        return hashlib.sha256(b"%d:" % self.stamp + self.raw).digest()


def place_of(item: Item) -> Place:
    """The item's place; who has none has no business here."""
    assert item.place is not None
    return item.place


def follows(item: Item, before: Item) -> bool:
    """Whether it may be handled in one transaction with the one before it."""
    if item.place is None or before.place is None:
        return False
    return item.place[:2] == before.place[:2] and item.place.after == before.place.offset


def changed(place: Place, mark: Sequence[Any], now: float) -> str:
    """Why this can't be the log in which the mark's message was handled; empty when it may be.

    `mark` is a row of `watermark_look`, `now` the monotonic clock.
    """
    last, topic_id, digest, age_seconds = mark
    if place.topic_id and topic_id and place.topic_id != topic_id:
        return f"the topic's id is {place.topic_id}, and was {topic_id}"
    if place.offset > last:
        return ""
    # Whoever moved the mark had read its message. Where that was before the end was asked, the end is behind it.
    if place.end is not None and place.end <= last and age_seconds > now - place.asked:
        return f"it ends at offset {place.end}, and offset {last} is handled"
    if place.offset == last and place.digest() != bytes(digest):
        return f"another message lies at offset {last}, which is handled"
    return ""
