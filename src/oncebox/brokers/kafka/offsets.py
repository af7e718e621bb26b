"""How far a partition's consumer group has come: the offset up to which everything is finished.

No I/O, no clock. What decides that nothing unfinished is ever committed stands here and nowhere else.
"""

from __future__ import annotations

import heapq

__all__ = ["OffsetTracker"]


class OffsetTracker:
    """The offsets of one partition that were read, and which of them are not finished yet.

    Work may finish in any order; `position` passes an offset only when it and all before it are done.
    Offsets that were never read (compacted away, transaction markers) hold nothing up.
    """

    __slots__ = ("_heap", "_next", "_open")

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._heap: list[int] = []
        self._next: int | None = None

    def __len__(self) -> int:
        """How many are unfinished."""
        return len(self._open)

    def read(self, offset: int) -> None:
        """This one was read, and is unfinished from now on."""
        # The last one read counts, not the highest: a log that lost its end writes the same offsets
        # again, and a position taken from before would pass messages that nobody has read.
        self._next = offset + 1
        if offset not in self._open:
            self._open.add(offset)
            heapq.heappush(self._heap, offset)

    def finish(self, offset: int) -> None:
        """This one is done for good. Finishing what is not open changes nothing."""
        self._open.discard(offset)

    def position(self) -> int | None:
        """What may be committed: the first offset that is not finished; None before the first read."""
        while self._heap and self._heap[0] not in self._open:
            heapq.heappop(self._heap)
        if self._heap and self._next is not None:
            return min(self._heap[0], self._next)
        return self._next

    def span(self) -> int:
        """From the first unfinished to the last read: what would be read again after a crash."""
        position = self.position()
        return 0 if position is None or self._next is None else max(self._next - position, 0)
