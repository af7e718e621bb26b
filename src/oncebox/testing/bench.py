"""A consumer at work in this process: messages are delivered as a broker would, until all has ended.

What works is the runtime's own: its flows, its performer, its connections. Only the loops around them
are the kit's, so that a process's life can be ended at any step and another one begun.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from oncebox import errors
from oncebox.app import App
from oncebox.consumer import Consumer
from oncebox.core.inline import stream
from oncebox.core.outcomes import Answer, Outcome
from oncebox.core.reap import reap
from oncebox.core.receiving import receive
from oncebox.core.replay import replay
from oncebox.core.steps import Call, Op
from oncebox.core.work import Item, Work
from oncebox.message import Message
from oncebox.replay import order, placed
from oncebox.runtime.keeper import new_worker_id
from oncebox.runtime.schema import check_schema, check_schema_async
from oncebox.runtime.workers import stored_turn
from oncebox.testing.hands import Connections, Hands, Settle
from oncebox.testing.loops import Loop
from oncebox.testing.steps import Meeting, Steps
from oncebox.testing.tables import Tables, open_tables
from oncebox.testing.tables.state import HOST

T = TypeVar("T")
ROUNDS_MAX = 60
"""Deliveries and turns after which what has not ended counts as stuck."""


_dead: dict[str, list[str]] = {}
"""Processes of the kit's that have died, by database, until their deaths are counted."""


class Parcel:
    """A message as a broker has it: delivered again, and counted, until it is acked."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.deliveries = 0
        self.is_acked = False
        self.outcomes: list[Outcome] = []

    def delivered(self) -> Message:
        """The next delivery of it."""
        self.deliveries += 1
        return msgspec.structs.replace(self.message, deliveries=max(self.deliveries, self.message.deliveries))

    def settle(self, outcome: Outcome) -> None:
        """What became of this delivery."""
        self.outcomes.append(outcome)
        self.is_acked = outcome.answer is Answer.ACK


class Bench:
    """An app and one of its consumers, on the app's own database."""

    def __init__(self, target: App | Consumer, message: Message, loop: Loop) -> None:
        self.consumer = consumer_of(target, message)
        self.app: App = self.consumer.app
        self.loop = loop
        self.ends: dict[tuple[str, str, str], list[Outcome]] = {}
        """How stored messages ended, by key."""
        self.connections = Connections(self.app, loop)
        self._tables: Tables | None = None

    @property
    def tables(self) -> Tables:
        """The database as a whole; opened when first asked for."""
        if self._tables is None:
            self._tables = open_tables(self.app.database)
        return self._tables

    def touch(self) -> None:
        """The tables are about to change."""
        if self._tables is not None:
            self._tables.touch()

    def prepare(self) -> None:
        """The schema is there, or SchemaMissing says what to run."""
        if self.app.database.serves_sync:
            check_schema(self.app.database)
        else:
            self.loop.run(check_schema_async(self.app.database))

    def close(self) -> None:
        """Let go of the database."""
        self.connections.close()
        if self._tables is not None:
            self._tables.close()

    def live(self, parcels: Sequence[Parcel], steps: Steps, *, again: bool = False) -> None:
        """One process from its start until everything is done; Died when it dies of its fault.

        `again`: others died before it, and what they had in hand is counted first.
        """
        Life(self, steps).live(parcels, again=again)

    def replay(self, messages: Sequence[Message], steps: Steps) -> None:
        """A replay of these, which were handled here, as `oncebox replay` would do it; then what it has led to."""
        Life(self, steps).replay(messages)

    def live_together(self, messages: Sequence[Message], count: int, *, any_order: bool) -> None:
        """`count` workers with the same deliveries at the same moment; in any order, each begins with
        another one, so that handlers of different messages meet."""
        barrier = threading.Barrier(count)
        failures: list[BaseException] = []
        meeting = None
        if any_order and len(messages) > 1 and self.app.database.dialect != "sqlite":
            meeting = Meeting(min(count, len(messages)))
        copies = [
            [Parcel(message) for message in _rotated(messages, number if any_order else 0)]
            for number in range(count)
        ]
        # A name that a handler may write down must not be a difference.
        name = threading.current_thread().name

        def work(mine: list[Parcel]) -> None:
            try:
                barrier.wait(30)
                Life(self, Steps(meeting=meeting)).live(mine)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(mine,), name=name, daemon=True) for mine in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]


class Life:
    """One process's life, on connections of its own, which end with it."""

    def __init__(self, bench: Bench, steps: Steps) -> None:
        self.bench = bench
        self.steps = steps
        self.id = new_worker_id()
        self.database = bench.app.database
        self._hands = Hands(bench.connections)

    def live(self, parcels: Sequence[Parcel], *, again: bool = False) -> None:
        """Deliver what is not acked, work off what is stored, until nothing is left."""
        self.bench.touch()
        try:
            self._live(parcels, again)
        except BaseException:
            self._hands.die()
            _dead.setdefault(self.database.place, []).append(self.id)
            raise
        self._hands.leave()

    def replay(self, messages: Sequence[Message]) -> None:
        """To the end of the replay, and of what it sends."""
        self.bench.touch()
        consumer = self.bench.consumer
        words: dict[str, Any] = {"given": placed(consumer, iter(messages)), "stopped": True}
        asked = order(consumer, reason="a proof", by="the kit", origin="proof", reset=True, **words)
        try:
            self._stage(consumer, lambda work: replay(work, asked), _ignore, self.steps)
            for _ in range(ROUNDS_MAX):
                if not self._work_off():
                    break
        except BaseException:
            self._hands.die()
            raise
        self._hands.leave()

    def _live(self, parcels: Sequence[Parcel], again: bool) -> None:
        consumer = self.bench.consumer
        if again:
            self._stage(consumer, self._reap, _ignore, Steps())
        beat = Call(self.database.queries.heartbeat, {"id": self.id, "host": HOST, "pid": os.getpid()})
        self._hands.side(consumer, beat)
        error: Exception | None = None
        for _ in range(ROUNDS_MAX):
            for parcel in parcels:
                if not parcel.is_acked:
                    error = self._deliver(consumer, parcel) or error
            if not self._work_off() and all(parcel.is_acked for parcel in parcels):
                break
        else:
            if error is not None:
                raise error
        for query in (self.database.queries.retire_hands, self.database.queries.retire):
            self._hands.side(consumer, Call(query, {"id": self.id}))

    def _reap(self, work: Work) -> Op[None]:
        """Count the deaths of processes of this kit's; an app that is at work here is none of its business."""
        dead = _dead.get(self.database.place, [])
        while dead:
            yield from reap(work, dead.pop(), 0.0)

    def _deliver(self, consumer: Consumer, parcel: Parcel) -> Exception | None:
        item = consumer.intake.from_message(parcel.delivered())

        def settle(items: Sequence[Item]) -> None:
            for settled in items:
                assert settled.outcome is not None
                parcel.settle(settled.outcome)

        def flow(work: Work) -> Op[Any]:
            return stream(work, item) if consumer.policy.mode == "inline" else receive(work, [item])

        try:
            self._stage(consumer, flow, settle, self.steps)
        except errors.DatabaseError as error:
            # As a worker that has lost its connection: another one, and the message comes again.
            self._hands.die()
            return error
        return None

    def _work_off(self) -> bool:
        """Every stored consumer of the app takes its turns. Whether there may be more to do."""
        worked = False
        waits = False
        for consumer in self.bench.app.consumers.values():
            if consumer.policy.mode == "stored" and consumer.registry.all():
                waits = True
                worked |= bool(self._stage(consumer, _turns, self._ended(consumer), self.steps))
        return worked or (waits and self.bench.tables.make_due())

    def _ended(self, consumer: Consumer) -> Settle:
        def settle(items: Sequence[Item]) -> None:
            for item in items:
                assert item.outcome is not None
                key = (consumer.name, item.message.source, item.message.id)
                self.bench.ends.setdefault(key, []).append(item.outcome)

        return settle

    def _stage(
        self,
        consumer: Consumer,
        flow: Callable[[Work], Op[T]],
        settle: Settle,
        steps: Steps,
    ) -> T:
        """One flow, to its end or to the process's."""
        work = consumer.work(self.id, 1)
        work.policy = msgspec.structs.replace(consumer.policy, crash_limit=1_000_000)
        return self._hands.run(consumer, work, flow(work), settle, steps)


def _turns(work: Work) -> Op[bool]:
    """Turns until one finds nothing. Whether any found something."""
    worked = False
    for turn in range(1, ROUNDS_MAX):
        if not (yield from stored_turn(work, turn)):
            break
        worked = True
    return worked


def _rotated(messages: Sequence[Message], by: int) -> list[Message]:
    by %= len(messages)
    return [*messages[by:], *messages[:by]]


def _ignore(items: Sequence[Item]) -> None:
    """Nobody waits for them."""


def consumer_of(target: App | Consumer, message: Message) -> Consumer:
    """The consumer that this message is for; UsageError when the app leaves a choice."""
    if isinstance(target, Consumer):
        return target
    known = list(target.consumers.values())
    fitting = [c for c in known if c.registry.find(message.type) is not None] or known
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(repr(consumer.name) for consumer in fitting) or "none"
    raise errors.UsageError(
        f"which consumer is the message of type {message.type!r} for? The app has {names}; "
        "say app.consumers['…'] instead of app"
    )
