"""One queue of the in-process broker: what is ready, delayed and in flight, and what each answer changes.

Decisions only: no locks, no waiting, no clock. The caller holds a lock and says what time it is, so
every rule of redelivery can be tested by hand.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from oncebox.brokers.contract import Delivery
from oncebox.brokers.stored import COUNTERS, InFlight, QueueOptions, QueueStats, Stored

_SLACK = 1024
"""Stale deadlines that may pile up before they are swept, beyond twice what is in flight."""


class Queue:
    """The state of one queue. Every method that takes `now` first brings back what is due by then."""

    def __init__(
        self, name: str, options: QueueOptions, bury: Callable[[Queue, Stored, float], None]
    ) -> None:
        self.name = name
        self.options = options
        self.counts: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self.held: dict[int, int] = {}
        """In flight per holder."""
        self._bury = bury
        self._ready: deque[Stored] = deque()
        """What was put, in its order."""
        self._back: list[tuple[int, Stored]] = []
        """What came back, by its place."""
        self._delayed: list[tuple[float, int, Stored]] = []
        self._in_flight: dict[int, InFlight] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._keys: dict[str, int] = {}
        self._behind: dict[str, list[tuple[int, Stored]]] = {}
        self._behind_count = 0
        self._positions = itertools.count(1)
        self._tags = itertools.count(1)

    @property
    def depth(self) -> int:
        """Everything that is not acked yet."""
        return (
            len(self._ready)
            + len(self._back)
            + self._behind_count
            + len(self._delayed)
            + len(self._in_flight)
        )

    @property
    def deliverable(self) -> bool:
        """Whether something may be ready to be taken at the time last settled."""
        return bool(self._ready or self._back)

    def stats(self, now: float) -> QueueStats:
        """The figures as of `now`."""
        self.settle(now)
        ready = len(self._ready) + len(self._back) + self._behind_count
        return QueueStats(
            ready=ready, delayed=len(self._delayed), in_flight=len(self._in_flight), **self.counts
        )

    def put(self, stored: Stored, now: float, delay_seconds: float = 0.0) -> None:
        """Take a message in, at the end of the queue."""
        stored.position = next(self._positions)
        stored.since = now
        self.counts["published"] += 1
        if delay_seconds > 0:
            self._return(stored, now, delay_seconds)
        else:
            self._ready.append(stored)

    def take(self, limit: int, now: float, holder: int, bytes_max: int | None = None) -> list[Delivery]:
        """Hand out up to `limit` messages in their order; stops before `bytes_max`, but not before one."""
        self.settle(now)
        taken: list[Delivery] = []
        pinned: set[str] = set()
        size = 0
        ready, back = self._ready, self._back
        while (ready or back) and len(taken) < limit:
            is_back = bool(back) and (not ready or back[0][0] < ready[0].position)
            stored = back[0][1] if is_back else ready[0]
            if bytes_max is not None and taken and size + stored.size > bytes_max:
                break
            if is_back:
                heapq.heappop(back)
            else:
                ready.popleft()
            if self.options.retention_seconds is not None and self._has_lapsed(stored, now):
                self.counts["lapsed"] += 1
                continue
            if self.options.pins_keys and stored.key is not None:
                # Within one batch a key may come several times: its order is the batch's order.
                if stored.key in self._keys and stored.key not in pinned:
                    self._behind.setdefault(stored.key, []).append((stored.position, stored))
                    self._behind_count += 1
                    continue
                pinned.add(stored.key)
                self._keys[stored.key] = self._keys.get(stored.key, 0) + 1
            size += stored.size
            taken.append(self._hand_out(stored, now, holder))
        if taken:
            self.counts["delivered"] += len(taken)
            self.held[holder] = self.held.get(holder, 0) + len(taken)
        return taken

    def ack(self, tags: Iterable[int], holder: int, now: float) -> None:
        """Forget these for good. What timed out before `now` is no longer the holder's to ack."""
        self.counts["acked"] += len(self._answered(tags, holder, now))

    def nack(self, tag: int, delay_seconds: float, holder: int, now: float) -> None:
        """Bring this back after the delay; in a queue that pins keys, its key waits with it."""
        for stored in self._answered((tag,), holder, now):
            self.counts["nacked"] += 1
            if self.options.pins_keys and stored.key is not None and delay_seconds > 0:
                stored.holds_key = True
                self._keys[stored.key] = self._keys.get(stored.key, 0) + 1
            self._come_back(stored, now, delay_seconds)

    def release(self, tags: Iterable[int], holder: int, now: float) -> None:
        """Bring these back at once, uncounted."""
        for stored in self._answered(tags, holder, now):
            self.counts["released"] += 1
            stored.deliveries -= 1
            self._come_back(stored, now)

    def extend(self, tags: Iterable[int], seconds: float, holder: int, now: float) -> None:
        """Keep these in flight until `seconds` after `now`; never shortens what they have."""
        self.settle(now)
        for tag in tags:
            flight = self._in_flight.get(tag)
            if flight is None or flight.holder != holder:
                self.counts["late"] += 1
                continue
            flight.deadline = max(flight.deadline, now + seconds)
            heapq.heappush(self._deadlines, (flight.deadline, tag))

    def give_back(self, holder: int, now: float, *, counted: bool) -> None:
        """Bring back all that `holder` has: uncounted when it closes, counted when it was lost."""
        tags = [tag for tag, flight in self._in_flight.items() if flight.holder == holder]
        if not counted:
            self.release(tags, holder, now)
            return
        for stored in self._answered(tags, holder, now):
            self.counts["dropped"] += 1
            self._come_back(stored, now)

    def settle(self, now: float) -> None:
        """Bring back what is due: delays that have passed, visibility that has run out."""
        while self._delayed and self._delayed[0][0] <= now:
            _, position, stored = heapq.heappop(self._delayed)
            if stored.holds_key:
                stored.holds_key = False
                self._free_key(stored)
            heapq.heappush(self._back, (position, stored))
        while (deadline := self._next_deadline()) is not None and deadline <= now:
            _, tag = heapq.heappop(self._deadlines)
            flight = self._in_flight.pop(tag)
            self._landed((flight.stored,), flight.holder)
            self.counts["timed_out"] += 1
            self._come_back(flight.stored, now)

    def next_due(self) -> float | None:
        """When `settle` will next have something to bring back; None: not by itself."""
        moments = [self._delayed[0][0]] if self._delayed else []
        if (deadline := self._next_deadline()) is not None:
            moments.append(deadline)
        return min(moments, default=None)

    def _hand_out(self, stored: Stored, now: float, holder: int) -> Delivery:
        tag = next(self._tags)
        deadline = now + self.options.visibility_seconds
        self._in_flight[tag] = InFlight(stored, holder, deadline)
        heapq.heappush(self._deadlines, (deadline, tag))
        stored.deliveries += 1
        if stored.redelivered:
            self.counts["redelivered"] += 1
        delivery = Delivery(
            body=stored.body,
            headers=stored.headers,
            properties=dict(stored.properties),
            provenance={"queue": self.name, "position": stored.position},
            key=stored.key,
            deliveries=stored.deliveries,
            redelivered=stored.redelivered,
            tag=tag,
        )
        stored.redelivered = True
        return delivery

    def _answered(self, tags: Iterable[int], holder: int, now: float) -> list[Stored]:
        """End the flights that are this holder's; the others are late and already someone else's."""
        self.settle(now)
        answered: list[Stored] = []
        for tag in tags:
            flight = self._in_flight.get(tag)
            if flight is None or flight.holder != holder:
                self.counts["late"] += 1
                continue
            answered.append(self._in_flight.pop(tag).stored)
        self._landed(answered, holder)
        # Answers leave their deadlines behind; unswept they would outnumber the messages.
        if len(self._deadlines) > 2 * len(self._in_flight) + _SLACK:
            self._deadlines = [(flight.deadline, tag) for tag, flight in self._in_flight.items()]
            heapq.heapify(self._deadlines)
        return answered

    def _landed(self, those: Sequence[Stored], holder: int) -> None:
        """These are no longer out at `holder`."""
        if not those:
            return
        self.held[holder] -= len(those)
        if not self.held[holder]:
            del self.held[holder]
        if self.options.pins_keys:
            for stored in those:
                self._free_key(stored)

    def _come_back(self, stored: Stored, now: float, delay_seconds: float = 0.0) -> None:
        """Back into the queue, or out of it when its deliveries are used up."""
        limit = self.options.deliveries_max
        if limit is not None and stored.deliveries >= limit:
            self.counts["dead_lettered"] += 1
            if stored.holds_key:
                stored.holds_key = False
                self._free_key(stored)
            self._bury(self, stored, now)
            return
        self._return(stored, now, delay_seconds)

    def _return(self, stored: Stored, now: float, delay_seconds: float) -> None:
        if delay_seconds > 0:
            heapq.heappush(self._delayed, (now + delay_seconds, stored.position, stored))
        else:
            heapq.heappush(self._back, (stored.position, stored))

    def _free_key(self, stored: Stored) -> None:
        """One less that the key waits for; at none, what stood behind it is ready again."""
        if stored.key is None or stored.key not in self._keys:
            return
        self._keys[stored.key] -= 1
        if self._keys[stored.key]:
            return
        del self._keys[stored.key]
        freed = self._behind.pop(stored.key, [])
        self._behind_count -= len(freed)
        for place in freed:
            heapq.heappush(self._back, place)

    def _has_lapsed(self, stored: Stored, now: float) -> bool:
        retention = self.options.retention_seconds
        return retention is not None and now - stored.since > retention

    def _next_deadline(self) -> float | None:
        """The earliest deadline that still stands; answered and extended ones are thrown away."""
        while self._deadlines:
            deadline, tag = self._deadlines[0]
            flight = self._in_flight.get(tag)
            if flight is not None and flight.deadline == deadline:
                return deadline
            heapq.heappop(self._deadlines)
        return None
