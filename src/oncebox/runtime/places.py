"""Where duplicates are told apart otherwise than by rows of one table: ledgers in partitions, and watermarks."""

from __future__ import annotations

import msgspec

from oncebox.core.leaves import read_tree, today
from oncebox.core.queries import Queries
from oncebox.core.steps import Op
from oncebox.core.watermark import watermarks

SOON_DAYS = 2
"""Partitions are made a week ahead; when today's or tomorrow's is missing, something is wrong."""


class PartitionedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer whose ledger rows lie in partitions by day."""

    consumer: str
    days: int
    """How many have a partition, those to come included."""
    first_day: str | None
    last_day: str | None
    missing: list[str]
    """Of today and tomorrow, what has no partition."""


class WatermarkedConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer that tells duplicates by how far a partition is handled."""

    consumer: str
    topics: int
    partitions: int
    oldest_seconds: float
    """Since the one that has stood still longest last moved. A partition that nobody writes to stands still, too."""


def read_partitioned(queries: Queries) -> Op[list[PartitionedLedger]]:
    """Who has partitions, by name; nobody on SQLite. Asks the catalog, and reads no row."""
    tree = yield from read_tree(queries, 0)
    return [
        PartitionedLedger(
            consumer=split.consumer,
            days=len(split.days),
            first_day=split.days[0].isoformat() if split.days else None,
            last_day=split.days[-1].isoformat() if split.days else None,
            missing=[
                day.isoformat() for day in split.missing(tree.now) if (day - today(tree.now)).days < SOON_DAYS
            ],
        )
        for split in sorted(tree.splits, key=lambda each: each.consumer)
    ]


def read_watermarked(queries: Queries) -> Op[list[WatermarkedConsumer]]:
    """Who has watermarks, by name."""
    marks = yield from watermarks(queries)
    found = []
    for consumer in sorted({mark.consumer for mark in marks}):
        own = [mark for mark in marks if mark.consumer == consumer]
        found.append(
            WatermarkedConsumer(
                consumer=consumer, topics=len({mark.topic for mark in own}), partitions=len(own),
                oldest_seconds=max(mark.age_seconds for mark in own),
            )
        )  # fmt: skip
    return found
