"""One message, everything that can happen to it, one effect.

A clean delivery shows what is right. Then, each time from the same state of the database: delivered
again, killed before and after every step and at every line of the handler, run again after a conflict,
delivered by several at once, in other orders. The rows at the end must be those of the clean one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from oncebox import errors
from oncebox.core.outcomes import Outcome, Status
from oncebox.core.steps import Next, Settle
from oncebox.message import Message
from oncebox.testing import memory, story
from oncebox.testing.bench import Bench, Parcel
from oncebox.testing.compare import Comparison, Difference
from oncebox.testing.lines import Died
from oncebox.testing.outside import Watch
from oncebox.testing.recorders import Recorded
from oncebox.testing.replays import prove_replay
from oncebox.testing.steps import Fault, Steps
from oncebox.testing.story import FaultName, NotOnce, Proof, tell
from oncebox.testing.tables import State
from oncebox.testing.tables.ends import NEVER, end_of, parked

ORDERS_MAX = 6
AFTERWARDS = ("oncebox.result",)
"""What may differ when messages come in another order: a result may tell the balance so far."""


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What a proof is asked for."""

    status: str = "processed"
    any_order: bool = False
    ignore: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    outside: tuple[Any, ...] = ()
    together: int = 4
    lines_max: int = 40


class Proving:
    """A proof under way, on a database that is put back before every try."""

    def __init__(self, bench: Bench, messages: Sequence[Message], wishes: Wishes) -> None:
        self.bench = bench
        self.messages = list(messages)
        self.wishes = wishes
        self.comparison = Comparison(wishes.ignore)
        self.recorded = Recorded(wishes.outside)
        self.watch = Watch(bench.app.database, wishes.allow)
        self.committed: list[State] = []
        self.proof = Proof()
        ids = ", ".join(repr(message.id) for message in self.messages)
        kinds = ", ".join(dict.fromkeys(repr(message.type) for message in self.messages))
        self.who = f"consumer {bench.consumer.name!r}, type {kinds}, id {ids}"

    def prove(self) -> Proof:
        """The proof, or NotOnce. The database is left as one clean delivery leaves it, or as it was."""
        self.bench.prepare()
        self.bench.tables.save()
        try:
            self.original = self.bench.tables.read()
            self._check_unknown()
            with self.watch.open():
                self._prove()
        except BaseException:
            self.bench.tables.restore()
            raise
        self._start()
        self.bench.live(self._parcels(), Steps())
        self.proof.noisy = self.comparison.noisy
        return self.proof

    def _prove(self) -> None:
        self._clean()
        self._clean_again()
        self._duplicates()
        prove_replay(self)
        for fault in self._faults():
            self._break(fault)
        self._together()
        if self.wishes.any_order:
            self._orders()

    # A clean delivery, twice

    def _clean(self) -> None:
        """The one that shows what is right: it works, and nothing leaves the process."""
        self.steps = Steps(watch=self.watch, trace=True)
        parcels = self._parcels()
        at_work = self.bench.loop.at_work()
        with self.watch.living():
            self.bench.live(parcels, self.steps)
            self.bench.loop.leave_late(at_work)
        self.right = self.bench.tables.read()
        self.right_effects = self.recorded.new()
        # Before how it ended: a mail server that is not there in a test is the smaller trouble.
        self._check_outside()
        self._check_ends(parcels)
        self.proof.steps = self.steps.names
        own = [name for name in self.right if name.startswith("oncebox.")]
        found = self.comparison.differences(self.original, self.right, without=own)
        self.proof.changed = tuple(difference.table for difference in found)
        self.proof.outcomes = [self._last(parcel) for parcel in parcels]

    def _clean_again(self) -> None:
        """The same again, in the same process: what differs is a time, an id, or a memory."""
        assert self.steps.lines is not None
        remembered = self.steps.lines.memory
        self._start(shifted=True)
        before = remembered.state()
        self._live(self._parcels(), committed=lambda: self.committed.append(self.bench.tables.read()))
        changed = self.proof.remembered = memory.changes(before, remembered.state())
        self.again = self.bench.tables.read()
        self.recorded.new()
        if found := self.comparison.differences(self.right, self.again):
            details = story.rows(found)
            if changed:
                details += [
                    "",
                    "in memory, the second delivery changed:",
                    *(f"  {change}" for change in changed),
                ]
            column = (
                f"{found[0].table}.{found[0].unexplained[0][0]}" if found[0].unexplained else found[0].table
            )
            what = "the same message on the same database gave other rows the second time:"
            raise tell("memory", self.who, what, details, column=column)

    def _check_unknown(self) -> None:
        """Of a message that is known already nothing could be shown: its handler would not run."""
        for message in self.messages:
            if end_of(self.original, self.bench.consumer.name, message) != NEVER:
                what = f"id {message.id!r} was delivered before; a proof needs a message that is new"
                raise tell("failed", self.who, what, ())

    def _check_ends(self, parcels: list[Parcel]) -> None:
        """Every message ended as it should, at its first try."""
        for parcel in parcels:
            end, wanted = end_of(self.right, self.bench.consumer.name, parcel.message), self.wishes.status
            outcomes = self._outcomes(parcel)
            failure = next((o for o in outcomes if o.error is not None), None)
            flaky = wanted == "processed" and any(o.status is Status.RETRY for o in outcomes)
            if end.split(":")[0] == wanted and not flaky:
                continue
            error = failure.error if failure is not None else None
            own = self.watch.own_files
            name: FaultName = "own commit" if own or isinstance(error, errors.TransactionError) else "failed"
            details = [f"{type(error).__name__}: {error}"] if error is not None else []
            details += story.sightings(own)
            what = f"delivered once, with nothing going wrong, it ended as {end!r} and not as {wanted!r}"
            raise tell(
                name, self.who, what if not flaky else f"{what}, and only after an error", details
            ) from error

    # What can happen

    def _duplicates(self) -> None:
        """On the rows of the second clean delivery: everything comes again, the latest first; and once more, as
        a delivery that says of itself to be a replay."""
        for is_replay in (False, True):
            again = [msgspec.structs.replace(message, replay=is_replay) for message in self.messages]
            self._live([Parcel(message) for message in reversed(again)])
            self.proof.duplicates += len(self.messages)
            found = self.comparison.differences(self.again, self.bench.tables.read())
            what = "it is delivered again, said to be a replay" if is_replay else "it is delivered again"
            self.judge("duplicate", what, found)

    def _faults(self) -> Iterable[Fault]:
        # After the last ack there are only looks at an empty queue; and in `Next` nothing happens.
        last = max(number for number, kind in enumerate(self.steps.kinds, 1) if kind is Settle)
        for number, kind in enumerate(self.steps.kinds[:last], 1):
            if kind is not Next:
                yield Fault("before", number)
        yield Fault("after", last)
        if self.steps.handled:
            yield Fault("rerun", 1)
        assert self.steps.lines is not None
        for number in self.steps.lines.chosen(self.wishes.lines_max):
            yield Fault("line", number)

    def _break(self, fault: Fault) -> None:
        """One fault; then another process takes over what the first has left."""
        self._start()
        parcels, steps = self._parcels(), Steps(fault, watch=self.watch)
        try:
            with self.watch.living():
                self.bench.live(parcels, steps)
        except Died:
            self._check_rollback(fault)
            self._live(parcels, again=True)
        if not steps.happened:
            return
        if fault.kind == "rerun":
            self.proof.reruns += 1
        else:
            self.proof.crash_points += 1
            self.proof.lines += fault.kind == "line"
        found = self._differences(self.bench.tables.read())
        self.judge("rerun" if fault.kind == "rerun" else "crash", self._told(fault), found)

    def _check_rollback(self, fault: Fault) -> None:
        """All or nothing: right after the death the rows are as before, or as after a commit of oncebox's."""
        left = self.bench.tables.read()
        own = [name for name in left if name.startswith("oncebox.")]
        found = self.comparison.differences(self.original, left, without=own)
        if found and all(self.comparison.differences(state, left, without=own) for state in self.committed):
            what = f"{self._told(fault)}, its transaction is rolled back, and yet rows have changed:"
            raise tell("own commit", self.who, what, story.rows(found))

    def _together(self) -> None:
        self._start()
        self.bench.live_together(self.messages, self.wishes.together, any_order=self.wishes.any_order)
        self._live(self._parcels(), again=True)
        self.proof.concurrent = self.wishes.together * len(self.messages)
        found = self._differences(
            self.bench.tables.read(), without=AFTERWARDS if len(self.messages) > 1 else ()
        )
        self.judge("concurrent", f"it is delivered {self.wishes.together} times at once", found)

    def _orders(self) -> None:
        """Every order of a few, or some orders of many; always the reverse, and the same ones every time."""
        everything = list(itertools.islice(itertools.permutations(self.messages), 1, ORDERS_MAX + 1))
        chance = random.Random(1)
        some = [chance.sample(self.messages, len(self.messages)) for _ in range(ORDERS_MAX - 1)]
        orders = everything if len(self.messages) <= 3 else [self.messages[::-1], *some]
        for order in orders:
            self._start()
            for message in order:
                self._live([Parcel(message)])
            self.proof.orders += 1
            found = self._differences(self.bench.tables.read(), without=AFTERWARDS)
            ids = ", ".join(repr(message.id) for message in order)
            self.judge("order", f"the order is {ids}", found)

    # How it ended

    def _differences(self, state: State, *, without: Iterable[str] = ()) -> list[Difference]:
        if parked(state):
            # An effect that died in the middle waits for a person, which is not what a clean run does.
            without = {*without, *(f"oncebox.{name}" for name in ("dead", "result", "ledger", "queue"))}
        return self.comparison.differences(self.right, state, without=without)

    def _check_outside(self) -> None:
        if seen := self.watch.seen:
            what = "the handler acts outside of its transaction:"
            raise tell("outside", self.who, what, story.sightings(seen), to=seen[0].to)

    def judge(self, fault: FaultName, what: str, found: list[Difference]) -> None:
        """NotOnce, if there are differences, or anything was done outside that must not be."""
        self._check_outside()
        effects = self.recorded.new()
        allowed = {} if fault in ("duplicate", "replay") else self.right_effects
        again = [
            f"{name} was done {count} times instead of {allowed.get(name, 0)}"
            for name, count in effects.items()
            if count > allowed.get(name, 0)
        ]
        if found:
            what = f"{what}, and in the end the rows are not those of a clean delivery:"
            raise tell(fault, self.who, what, [*story.rows(found), *again])
        if again:
            what = f"{what}, and in the end something was done too often:"
            raise tell("outside", self.who, what, again, to="…")

    def _start(self, *, shifted: bool = False) -> None:
        self.bench.tables.restore(shifted=shifted)
        self.bench.ends.clear()
        self.recorded.new()

    def _live(
        self, parcels: list[Parcel], *, again: bool = False, committed: Callable[[], None] | None = None
    ) -> None:
        """A life without a fault of ours."""
        with self.watch.living():
            self.bench.live(parcels, Steps(watch=self.watch, committed=committed), again=again)

    def _parcels(self) -> list[Parcel]:
        return [Parcel(message) for message in self.messages]

    def _told(self, fault: Fault) -> str:
        assert self.steps.lines is not None
        return fault.told(self.steps.names, self.steps.lines.told())

    def _outcomes(self, parcel: Parcel) -> list[Outcome]:
        key = (self.bench.consumer.name, parcel.message.source, parcel.message.id)
        return [*parcel.outcomes, *self.bench.ends.get(key, [])]

    def _last(self, parcel: Parcel) -> Outcome:
        return self._outcomes(parcel)[-1]


__all__ = ["NotOnce", "Proof", "Proving", "Wishes"]
