"""What a consumer of a group has in hand: read, handed out, put off, finished; per assigned partition.

No Kafka client and no thread of its own: the polling thread puts in and commits, the event loop takes
and answers, and one lock keeps them apart. Nothing in here waits for I/O.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from oncebox.brokers.contract import Delivery
from oncebox.brokers.kafka.lanes import Held, Lane, Waiting

__all__ = ["Desk"]


class Desk:
    """All that one source holds. Every method may be called from any thread.

    `window` bounds how far a partition's reading may get ahead of its committed position, and
    `buffer_max` and `buffer_bytes_max` what lies here without having been handed out. `serial`: what was put off
    holds back its partition, not its key.
    """

    def __init__(self, *, window: int, buffer_max: int, buffer_bytes_max: int, serial: bool = False) -> None:
        self.serial = serial
        self.window = window
        self.buffer_max = buffer_max
        self.buffer_bytes_max = buffer_bytes_max
        self.wake: Callable[[], None] = lambda: None
        """Called, from any thread, when something may be there to take."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._awaited: Callable[[], bool] | None = None
        """What the polling thread waits for; there is only one."""
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._fresh: deque[Held] = deque()
        self._back: list[Held] = []
        self._delayed: list[tuple[float, int, Held]] = []
        self._bytes = 0
        self._arrivals = 0

    # The polling thread

    def lanes(self) -> list[Lane]:
        """The partitions that are assigned now."""
        with self._lock:
            return list(self._lanes.values())

    def lane(self, topic: str, partition: int) -> Lane | None:
        """The lane of an assigned partition."""
        return self._lanes.get((topic, partition))

    def assign(self, topic: str, partition: int, end: int | None, committed: int | None) -> None:
        """From now on this partition is ours; it ends there, and the group has come so far."""
        with self._lock:
            stale = self._lanes.pop((topic, partition), None)
            if stale is not None:
                self._retire([stale])
            self._lanes[topic, partition] = Lane(topic, partition, end, committed)

    def put(self, read: Iterable[tuple[Lane, int, Delivery]]) -> None:
        """These were read, in this order."""
        with self._lock:
            offsets: dict[Lane, list[int]] = {}
            for lane, offset, delivery in read:
                if not lane.live:
                    continue
                self._arrivals += 1
                before = lane.held.get(offset)
                if before is not None:
                    before.delivery.tag = None
                held = lane.held[offset] = Held(lane, offset, self._arrivals, delivery)
                self._fresh.append(held)
                self._bytes += len(delivery.body)
                if lane not in offsets:
                    offsets[lane] = []
                offsets[lane].append(offset)
            for lane, those in offsets.items():
                lane.tracker.read(those)
        self.wake()

    def is_full(self) -> bool:
        """Whether as much lies here as may."""
        return len(self._fresh) + len(self._back) >= self.buffer_max or self._bytes >= self.buffer_bytes_max

    def wait_for_room(self, seconds: float) -> bool:
        """Until half of the buffer was taken; False when that took too long."""

        return self._wait(self._has_room, seconds)

    def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        with self._changed:
            self._awaited = condition
            try:
                return self._changed.wait_for(condition, seconds)
            finally:
                self._awaited = None

    def is_ahead(self, lane: Lane) -> bool:
        """Whether a partition has been read as far ahead of its committed position as it may."""
        with self._lock:
            return lane.tracker.span() >= (self.window // 2 if lane.paused else self.window)

    def positions(self, lanes: Iterable[Lane], *, confirmed: bool = False) -> list[tuple[Lane, int]]:
        """What may be committed and was not yet. Counts as sent; `unsent` takes that back.

        With `confirmed`, also what was sent and not answered yet: for the last word on a partition, which
        must not rest on a commit that may fail.
        """
        found: list[tuple[Lane, int]] = []
        with self._lock:
            for lane in lanes:
                position = lane.tracker.position()
                known = lane.confirmed if confirmed else lane.committed
                if position is not None and position != known and lane.live:
                    lane.committed = position
                    found.append((lane, position))
        return found

    def is_behind(self) -> bool:
        """Whether much was finished since the broker was last told."""
        with self._lock:
            return any(
                (lane.tracker.position() or 0) - lane.committed >= self.window // 2
                for lane in self._lanes.values()
                if lane.committed is not None
            )

    def confirm(self, lanes: Iterable[tuple[Lane, int]]) -> None:
        """The broker has these positions."""
        with self._lock:
            for lane, position in lanes:
                lane.confirmed = position

    def unsent(self, lanes: Iterable[tuple[Lane, int]]) -> None:
        """These commits failed: send them again, or what has come since."""
        with self._lock:
            for lane, position in lanes:
                if lane.committed == position:
                    lane.committed = None

    def recall(self, lanes: Sequence[Lane]) -> None:
        """Hand out no more of these; what is out may still be answered."""
        with self._lock:
            for lane in lanes:
                lane.recalled = True
            self._forget({id(lane) for lane in lanes})

    def wait_until_answered(self, lanes: Sequence[Lane], seconds: float) -> bool:
        """Until nothing of these partitions is out; False when that took too long."""
        return self._wait(lambda: not any(held.out for lane in lanes for held in lane.held.values()), seconds)

    def retire(self, lanes: Iterable[Lane]) -> None:
        """These are no longer ours: what lies here is dropped, later answers are ignored."""
        with self._lock:
            self._retire(lanes)
            self._tell()

    # The event loop

    def take(self, limit: int, now: float) -> list[Delivery]:
        """What is there, `limit` at most: what came back first, then what is new, in order of arrival."""
        taken: list[Delivery] = []
        with self._lock:
            self._settle(now)
            while len(taken) < limit and (self._back or self._fresh):
                held = heapq.heappop(self._back) if self._back else self._fresh.popleft()
                lane, delivery = held.lane, held.delivery
                self._bytes -= len(delivery.body)
                if lane.held.get(held.offset) is not held:
                    continue
                if lane.waiting and (key := self._key(delivery)) is not None and key in lane.waiting:
                    lane.waiting[key].behind.append(held)
                    continue
                held.out = True
                delivery.tag = held
                if lane.facts is not None and delivery.place is not None:
                    delivery.place = delivery.place._replace(**lane.facts._asdict())
                taken.append(delivery)
            self._tell()
        return taken

    def next_due(self) -> float | None:
        """When something that was put off is there again."""
        with self._lock:
            while self._delayed and not self._delayed[0][2].lane.live:
                heapq.heappop(self._delayed)
            return self._delayed[0][0] if self._delayed else None

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """These are finished."""
        with self._lock:
            offsets: dict[Lane, list[int]] = {}
            for delivery in deliveries:
                held = self._answered(delivery)
                if held is not None:
                    lane, offset = held.lane, held.offset
                    del lane.held[offset]
                    if lane not in offsets:
                        offsets[lane] = []
                    offsets[lane].append(offset)
            for lane, those in offsets.items():
                lane.tracker.finish(those)
            self._tell()

    def nack(self, delivery: Delivery, due: float) -> None:
        """Put off until `due`; what has the same key waits behind it."""
        with self._lock:
            held = self._answered(delivery)
            if held is not None and not held.lane.recalled:
                # Kafka counts nothing; that we had it before, we know ourselves.
                again = self._held_anew(held, deliveries=delivery.deliveries + 1, redelivered=True)
                heapq.heappush(self._delayed, (due, again.arrival, again))
                key = self._key(again.delivery)
                if key is not None:
                    again.lane.waiting.setdefault(key, Waiting()).count += 1
            self._tell()
        self.wake()

    def release(self, deliveries: Iterable[Delivery]) -> None:
        """There again at once, at their old places."""
        with self._lock:
            for delivery in deliveries:
                held = self._answered(delivery)
                if held is not None and not held.lane.recalled:
                    self._return(self._held_anew(held))
            self._tell()
        self.wake()

    # Under the lock

    def _key(self, delivery: Delivery) -> str | None:
        return "" if self.serial else delivery.key

    def _has_room(self) -> bool:
        lying = len(self._fresh) + len(self._back)
        return lying <= self.buffer_max // 2 and self._bytes <= self.buffer_bytes_max // 2

    def _tell(self) -> None:
        # A thread that is woken for nothing takes the interpreter from those who work.
        if self._awaited is not None and self._awaited():
            self._changed.notify_all()

    def _answered(self, delivery: Delivery) -> Held | None:
        """The message, when the answer is to its current hand-out; else it is late, and means nothing.

        A delivery that is out and what is held of it know each other, which no collector finds: whoever ends the one
        takes it from the other.
        """
        held = delivery.tag
        if type(held) is not Held:
            return None
        delivery.tag = None
        if held.lane.held.get(held.offset) is not held or not held.out:
            return None
        held.out = False
        return held

    def _held_anew(self, held: Held, **changes: Any) -> Held:
        """The same message at its old place, to be handed out once more."""
        delivery = msgspec.structs.replace(held.delivery, tag=None, **changes)
        again = Held(held.lane, held.offset, held.arrival, delivery)
        held.lane.held[held.offset] = again
        return again

    def _return(self, held: Held) -> None:
        heapq.heappush(self._back, held)
        self._bytes += len(held.delivery.body)

    def _settle(self, now: float) -> None:
        """Bring back what is due, and with the last one of a key those that waited behind it."""
        while self._delayed and self._delayed[0][0] <= now:
            held = heapq.heappop(self._delayed)[2]
            if not held.lane.live:
                continue
            self._return(held)
            key = self._key(held.delivery)
            waiting = held.lane.waiting.get(key) if key is not None else None
            if key is None or waiting is None:
                continue
            waiting.count -= 1
            if not waiting.count:
                del held.lane.waiting[key]
                for follower in waiting.behind:
                    self._return(follower)

    def _retire(self, lanes: Iterable[Lane]) -> None:
        gone: set[int] = set()
        for lane in lanes:
            lane.live = False
            for held in lane.held.values():
                held.delivery.tag = None
            lane.held.clear()
            lane.waiting.clear()
            gone.add(id(lane))
            if self._lanes.get((lane.topic, lane.partition)) is lane:
                del self._lanes[lane.topic, lane.partition]
        self._forget(gone)

    def _forget(self, gone: set[int]) -> None:
        """Take what lies here of these lanes off the desk; it stays unfinished."""
        self._fresh = deque(held for held in self._fresh if id(held.lane) not in gone)
        self._back = [held for held in self._back if id(held.lane) not in gone]
        heapq.heapify(self._back)
        self._delayed = [entry for entry in self._delayed if id(entry[2].lane) not in gone]
        heapq.heapify(self._delayed)
        self._bytes = sum(len(held.delivery.body) for queue in (self._fresh, self._back) for held in queue)
