"""The in-process broker's queues, their lock, and those who wait for them.

All state changes happen here, under one lock, without waiting; only `receive` and `drained` wait, and
they take nothing until they are about to return. That is what makes them safe to cancel.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from oncebox.brokers.contract import Delivery
from oncebox.brokers.queue import Queue
from oncebox.brokers.stored import QueueOptions, QueueStats, Stored
from oncebox.brokers.waiters import Waiters
from oncebox.clock import Clock
from oncebox.errors import BrokerUnavailable, ConfigError, QueueFull


class Hub:
    """Queues, topics and holders of deliveries. Every method is safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._queues: dict[str, Queue] = {}
        self._waiters: dict[str, Waiters] = {}
        self._idle = Waiters()
        self._bindings: dict[str, dict[str, frozenset[str]]] = {}
        self._numbers = itertools.count(1)
        self._holders: set[int] = set()
        clock.watch(self._jumped)

    def declare(self, name: str, words: dict[str, Any]) -> QueueOptions:
        """The queue's options: these words if it is new; `ConfigError` if it is not and a word differs."""
        with self._lock:
            queue = self._queues.get(name)
            if queue is None:
                options = QueueOptions(**words)
                if options.dead_letter == name:
                    raise ConfigError(f"queue {name!r} can't be its own dead-letter queue")
                self._queues[name] = Queue(name, options, self._bury)
                self._waiters[name] = Waiters()
                return options
        declared = msgspec.structs.asdict(queue.options)
        for word, value in words.items():
            if value != declared[word]:
                raise ConfigError(
                    f"queue {name!r} is declared with {word}={declared[word]!r}; it can't become {value!r}"
                )
        return queue.options

    def options(self, name: str) -> QueueOptions:
        """The options of a queue that is declared already, else `ConfigError`."""
        with self._lock:
            return self._get(name).options

    def bind(self, topic: str, name: str, types: frozenset[str]) -> None:
        """Copy what is published to the topic into the queue: these types, all if empty."""
        with self._lock:
            self._get(name)
            self._bindings.setdefault(topic, {})[name] = types

    def store(self, name: str, messages: Sequence[Stored], duplicates: int, delay_seconds: float) -> None:
        """Take all of these in, each `1 + duplicates` times; none of them when there is no room for all."""
        if duplicates < 0 or delay_seconds < 0:
            raise ValueError("duplicates and delay_seconds are not negative")
        with self._lock:
            queue = self._get(name)
            _check_room(queue, len(messages) * (1 + duplicates))
            now = self._clock.monotonic()
            for message in messages:
                for _ in range(1 + duplicates):
                    queue.put(copy.copy(message), now, delay_seconds)
            self._changed(queue)

    def route(self, topic: str, messages: Sequence[Stored]) -> list[BaseException | None]:
        """Copy each message to every queue bound for it, or to none and say why; one answer each."""
        confirmations: list[BaseException | None] = []
        with self._lock:
            bindings = self._bindings.get(topic, {})
            for message in messages:
                kind = message.properties.get("type", "")
                names = [name for name, types in bindings.items() if not types or kind in types]
                try:
                    for name in names:
                        _check_room(self._get(name), 1)
                except QueueFull as error:
                    confirmations.append(error)
                    continue
                for name in names:
                    self.store(name, [message], 0, 0.0)
                confirmations.append(None)
        return confirmations

    def stats(self) -> dict[str, QueueStats]:
        """Every queue's figures as of now."""
        with self._lock:
            now = self._clock.monotonic()
            # First all of them: what comes back may move to a queue that would already be counted.
            for queue in list(self._queues.values()):
                queue.settle(now)
            return {name: queue.stats(now) for name, queue in self._queues.items()}

    async def drained(self, names: Sequence[str]) -> None:
        """Wait until these queues (all that take no dead letters, if none) hold nothing at all."""
        while True:
            with self._lock:
                dead = {queue.options.dead_letter for queue in self._queues.values()}
                waited = names or [name for name in self._queues if name not in dead]
                if not any(self._get(name).depth for name in waited):
                    return
                waiter = self._idle.add()
            try:
                await waiter.wait(None)
            finally:
                with self._lock:
                    self._idle.discard(waiter)

    def enter(self) -> int:
        """A new holder of deliveries."""
        with self._lock:
            holder = next(self._numbers)
            self._holders.add(holder)
            return holder

    def leave(self, name: str, holder: int, *, counted: bool) -> None:
        """The holder is gone: what it held comes back at once, and its waiting receives end."""
        with self._lock:
            if holder not in self._holders:
                return
            self._holders.discard(holder)
            queue = self._get(name)
            queue.give_back(holder, self._clock.monotonic(), counted=counted)
            self._changed(queue)
            self._waiters[name].wake()

    async def receive(
        self, name: str, holder: int, limit: int, prefetch: int | None, bytes_max: int | None = None
    ) -> list[Delivery]:
        """Wait for at least one delivery and take what is there, within the bounds."""
        if limit < 1:
            raise ValueError(f"limit={limit}: it is at least 1")
        while True:
            with self._lock:
                if holder not in self._holders:
                    raise BrokerUnavailable(f"the source of queue {name!r} was closed or lost")
                queue = self._get(name)
                now = self._clock.monotonic()
                self._settle(name, now)
                room = limit if prefetch is None else min(limit, prefetch - queue.held.get(holder, 0))
                taken = queue.take(room, now, holder, bytes_max)
                self._changed(queue)
                if taken:
                    # Nothing is awaited between here and the caller: a cancellation finds either
                    # a waiter that has taken nothing, or a receive that has returned.
                    return taken
                due = self._next_due(name)
                waiter = self._waiters[name].add(due)
            try:
                await waiter.wait(None if due is None else due - now)
            finally:
                with self._lock:
                    self._waiters[name].discard(waiter)

    def answer(self, name: str, change: Callable[[Queue, float], None]) -> None:
        """Apply one answer to a queue and wake those whom it concerns."""
        with self._lock:
            queue = self._get(name)
            change(queue, self._clock.monotonic())
            self._changed(queue)

    def _get(self, name: str) -> Queue:
        queue = self._queues.get(name)
        if queue is None:
            known = ", ".join(map(repr, sorted(self._queues))) or "none"
            raise ConfigError(
                f"no queue named {name!r} (known: {known}); declare it with memory.queue({name!r})"
            )
        return queue

    def _feeders(self, name: str) -> list[Queue]:
        """The queues whose dead letters come here: their timeouts may put something in."""
        return [queue for queue in self._queues.values() if queue.options.dead_letter == name]

    def _settle(self, name: str, now: float) -> None:
        for queue in [*self._feeders(name), self._get(name)]:
            queue.settle(now)
            self._changed(queue)

    def _next_due(self, name: str) -> float | None:
        dues = [queue.next_due() for queue in [*self._feeders(name), self._get(name)]]
        return min((due for due in dues if due is not None), default=None)

    def _bury(self, queue: Queue, stored: Stored, now: float) -> None:
        """Move to the dead-letter queue, past its bound too: there is no one left to refuse it to."""
        name = queue.options.dead_letter
        assert name is not None
        if name not in self._queues:
            self.declare(name, {})
        properties = {**stored.properties, "dead_letter_queue": queue.name}
        self._queues[name].put(Stored(stored.body, stored.headers, properties, stored.key, stored.size), now)
        self._changed(self._queues[name])

    def _changed(self, queue: Queue) -> None:
        """Wake who waits for this queue: all when there is something, else who would sleep too long."""
        due = queue.next_due()
        if queue.deliverable:
            self._waiters[queue.name].wake()
        elif due is not None:
            self._waiters[queue.name].wake(due)
        if due is not None and queue.options.dead_letter in self._waiters:
            self._waiters[queue.options.dead_letter].wake(due)
        if not queue.depth:
            self._idle.wake()

    def _jumped(self) -> None:
        with self._lock:
            for waiters in self._waiters.values():
                waiters.wake()


def _check_room(queue: Queue, count: int) -> None:
    if queue.depth + count > queue.options.size_max:
        raise QueueFull(
            f"queue {queue.name!r} holds {queue.depth:,} messages of at most {queue.options.size_max:,}; "
            f"{count:,} more were not taken"
        )
