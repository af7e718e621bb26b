"""How far a partition's consumer group has come: the offset up to which everything is finished.

No I/O, no clock. What decides that nothing unfinished is ever committed stands here and nowhere else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

__all__ = ["OffsetTracker"]


class OffsetTracker:
    """The offsets of one partition that were read, and which of them are not finished yet.

    Work may finish in any order; `position` passes an offset only when it and all before it are done.
    Offsets that were never read (compacted away, transaction markers) hold nothing up.
    """

    __slots__ = ("_next", "_open", "_order")

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._order: deque[int] = deque()
        """Ascending: all that is unfinished, and of what is finished only what comes later."""
        self._next: int | None = None

    def __len__(self) -> int:
        """How many are unfinished."""
        return len(self._open)

    def read(self, offsets: Sequence[int]) -> None:
        """These were read, in this order, and are unfinished from now on."""
        if not offsets:
            return
        # The last one read counts, not the highest: a log that lost its end writes the same offsets
        # again, and a position taken from before would pass messages that nobody has read.
        self._next = offsets[-1] + 1
        self._open.update(offsets)
        in_order = sorted(offsets)
        if self._order and in_order[0] <= self._order[-1]:
            self._order = deque(sorted(self._open))
        else:
            self._order.extend(in_order)

    def finish(self, offsets: Sequence[int]) -> None:
        """These are done for good. Finishing what is not open changes nothing."""
        self._open.difference_update(offsets)

    def position(self) -> int | None:
        """What may be committed: the first offset that is not finished; None before the first read."""
        while self._order and self._order[0] not in self._open:
            self._order.popleft()
        if self._order and self._next is not None:
            return min(self._order[0], self._next)
        return self._next

    def span(self) -> int:
        """From the first unfinished to the last read: what would be read again after a crash."""
        position = self.position()
        return 0 if position is None or self._next is None else max(self._next - position, 0)
