"""What a process counts for its consumers' status, and writes down once a second."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence

from oncebox.core.outcomes import Outcome, Status
from oncebox.identity.ages import made_at
from oncebox.message import Message
from oncebox.runtime.meter import Meter

TOLD_MAX = 4096
"""Outcomes that wait to be added up, where nobody comes to drain them."""


class Tallies:
    """Counts per consumer, type and outcome since the last flush; written once a second, not per message."""

    def __init__(self, meter: Meter | None = None) -> None:
        self.meter = meter
        """Where metrics are on: counts everything too, since the process started."""
        self._told: deque[tuple[str, str, str, int]] = deque()
        """Worker threads count, and so does the event loop: each only adds to this, which needs no lock."""
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()
        self._drained = time.monotonic()

    def is_due(self) -> bool:
        """Whether a second has passed since they were last written."""
        return bool(self._told or self._counts) and time.monotonic() - self._drained >= 1.0

    def add(self, consumer: str, message: Message, outcome: Outcome) -> None:
        """Count one outcome."""
        kind = message.type
        self._tell(consumer, kind, outcome.status, 1)
        if self.meter is None:
            return
        self.meter.count(consumer, kind, outcome.status)
        # What is replayed is old by intention.
        if outcome.status is Status.PROCESSED and not message.replay:
            made = made_at(message)
            if made is not None:
                self.meter.lag(consumer, kind, time.time() - made)

    def add_all(self, consumer: str, messages: Sequence[Message], outcome: Outcome) -> None:
        """Count the same outcome of each of these."""
        if self.meter is not None:
            for message in messages:
                self.add(consumer, message, outcome)
            return
        for kind, n in Counter([message.type for message in messages]).items():
            self._tell(consumer, kind, outcome.status, n)

    def _tell(self, consumer: str, kind: str, status: str, n: int) -> None:
        self._told.append((consumer, kind, status, n))
        if len(self._told) >= TOLD_MAX:
            self._add_up()

    def _add_up(self) -> None:
        with self._lock:
            for _ in range(len(self._told)):
                consumer, kind, status, n = self._told.popleft()
                self._counts[consumer, kind, status] += n

    def drain(self) -> list[dict[str, object]]:
        """What was counted since last time, sorted so that two processes lock rows in one order."""
        self._add_up()
        with self._lock:
            counts, self._counts = self._counts, Counter()
        self._drained = time.monotonic()
        return [
            {"consumer": consumer, "type": kind, "outcome": str(outcome), "n": n}
            for (consumer, kind, outcome), n in sorted(counts.items())
        ]
