"""Partitions at work: made ahead, emptied and dropped by whoever walks the ledger."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

import msgspec

from oncebox import errors
from oncebox.core import partitions, sweep
from oncebox.core.leaves import Leaf, Split, read_tree
from oncebox.core.queries import Queries
from oncebox.core.run import Perform, run_async

log = logging.getLogger("oncebox")


class Days:
    """One stretch of a walk through a ledger that may have partitions.

    What can't be had, a lock or a right, is told and left for a later walk: rows are then deleted one by one, and
    what comes for a day without a partition lies in the rest.
    """

    def __init__(self, queries: Queries, walk: sweep.Walk, holder: str, perform: Perform) -> None:
        self._queries = queries
        self._walk = walk
        self._holder = holder
        self._perform = perform
        self._tried: set[str] = set()
        self.dropped: list[str] = []
        """Partitions that are gone."""

    async def make(self, windows: Mapping[str, float]) -> None:
        """Partitions for today and the days to come."""
        for split in self._walk.splits:
            for day in split.missing(self._walk.now) if split.consumer in windows else ():
                try:
                    await run_async(partitions.make_day(self._queries, split, day), self._perform)
                except errors.DatabaseUnavailable:
                    raise
                except errors.OnceboxError as error:
                    log.warning("partitions: consumer %s: none for %s yet: %s", split.consumer, day, error)
                    break

    async def clear(self, windows: Mapping[str, float]) -> Counter[str]:
        """Empty the partition where the walk stands now, if it may be. How many rows of whom went."""
        leaf, walk = self._walk.leaf, self._walk
        if leaf is None or leaf.day is None or leaf.name in self._tried or leaf.consumer not in windows:
            return Counter()
        self._tried.add(leaf.name)
        # What is archived is verified row by row, and deleted so.
        if leaf.consumer in walk.archives or walk.place > leaf.first:
            return Counter()
        own = {leaf.consumer: windows[leaf.consumer]}
        try:
            if not await run_async(sweep.renew(self._queries, walk, self._holder), self._perform):
                return Counter()
            fence = sweep.move(self._queries, walk, self._holder, walk.place)
            op = partitions.clear_day(self._queries, leaf, sweep.windows_text(own, walk), fence)
            done = await run_async(op, self._perform)
        except errors.DatabaseUnavailable:
            raise
        except errors.OnceboxError as error:
            log.log(_level(error), "partitions: %s is walked row by row: %s", leaf.name, error)
            return Counter()
        if done is None:
            return Counter()
        await self._shrink(leaf)
        log.info("partitions: %s: %d rows were past their window, %d stay", leaf.name, *done)
        return Counter({leaf.consumer: done[0]})

    async def retire(self, leaf: Leaf | None) -> None:
        """Drop a partition that the walk has just left."""
        split = self._split(leaf) if leaf is not None and leaf.day is not None else None
        if leaf is None or split is None or leaf is self._walk.leaf:
            return
        fence = sweep.move(self._queries, self._walk, self._holder, self._walk.place)
        try:
            op = partitions.retire_day(self._queries, split, leaf, fence)
            if await run_async(op, self._perform):
                self.dropped.append(leaf.name)
                log.info("partitions: %s is dropped", leaf.name)
        except errors.DatabaseUnavailable:
            raise
        except errors.OnceboxError as error:
            log.log(_level(error), "partitions: %s stays until the next walk: %s", leaf.name, error)

    def _split(self, leaf: Leaf) -> Split | None:
        return next((each for each in self._walk.splits if each.consumer == leaf.consumer), None)

    async def _shrink(self, leaf: Leaf) -> None:
        """What is left of it is walked as ever."""
        tree = await run_async(read_tree(self._queries, 0), self._perform)
        pages = next((each.pages for each in tree.leaves if each.name == leaf.name), 0)
        less = msgspec.structs.replace(leaf, pages=max(pages, 1))
        self._walk.leaves = tuple(less if each.name == leaf.name else each for each in self._walk.leaves)


def _level(error: errors.OnceboxError) -> int:
    """Somebody at work is nothing to worry about; a right that is missing is."""
    return logging.INFO if isinstance(error, (errors.LockBusy, errors.Conflict)) else logging.WARNING
