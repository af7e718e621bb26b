"""One assigned partition, and what of it is in hand. Plain state; the desk guards it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from oncebox.brokers.contract import Delivery
from oncebox.brokers.kafka.offsets import OffsetTracker

__all__ = ["Facts", "Held", "Lane", "Waiting"]


class Facts(NamedTuple):
    """What tells a log from another one of its name."""

    topic_id: str
    """Empty where the cluster does not tell."""
    end: int | None
    asked: float
    """Before they were asked, on the monotonic clock."""


class Lane:
    """One partition for as long as it is assigned. A later assignment of it is another lane."""

    __slots__ = (
        "committed", "confirmed", "end", "facts", "first", "held", "last", "live", "partition", "paused",
        "recalled", "topic", "tracker", "waiting",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, end: int | None, committed: int | None) -> None:
        self.topic = topic
        self.partition = partition
        self.tracker = OffsetTracker()
        self.held: dict[int, Held] = {}
        self.live = True
        """False once it was revoked or lost: its answers are ignored from then on."""
        self.recalled = False
        """True once it is being revoked: nothing more of it is handed out, what is out may be answered."""
        self.paused = False
        self.committed = committed
        """The position that the broker was last told; None when it never was."""
        self.confirmed = committed
        """The position that the broker is known to have: a commit may still be on its way, and fail."""
        self.first: int | None = None
        self.end = end
        """The partition's end when it was assigned: nobody has read what came later. None: not known."""
        self.waiting: dict[str, Waiting] = {}
        self.last = -1
        """The offset that was read last in this assignment."""
        self.facts: Facts | None = None
        """What is known of the log, where that is asked for."""

    def may_be_known(self, offset: int, window: int) -> bool:
        """Whether another consumer may have had it before us: it was there when we came, and not
        further from the first than a consumer may get ahead of its position."""
        if self.first is None:
            self.first = offset
        return offset < self.first + window and (self.end is None or offset < self.end)


class Held(msgspec.Struct, eq=False):
    """One message that was read and is not finished, and the tag of its delivery: a message that comes back after
    it was out is held anew, so that a late answer is not taken for one to the next hand-out."""

    lane: Lane
    offset: int
    arrival: int
    delivery: Delivery
    out: bool = False
    """Whether it is handed out, and not answered."""

    def __lt__(self, other: Held) -> bool:
        return self.arrival < other.arrival


class Waiting:
    """A key of which some were put off: those behind them wait, so that they don't overtake."""

    __slots__ = ("behind", "count")

    def __init__(self) -> None:
        self.count = 0
        self.behind: list[Held] = []
