"""Steps by number: every step of a delivery passes through here, and at one of them the process dies.

A process that has died performs no step any more, so whatever a flow would still do is refused. Its
connections are closed without a goodbye to the transaction, which the database rolls back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import isawaitable
from typing import Any, Literal

import msgspec

from oncebox import errors
from oncebox.core import steps
from oncebox.core.run import Perform
from oncebox.core.steps import Step
from oncebox.testing.lines import Died, Lines
from oncebox.testing.outside import Watch

STEPS_MAX = 100_000
Kind = Literal["before", "after", "line", "rerun"]

WORDS: dict[type[Step], str] = {
    steps.Begin: "BEGIN and claim",
    steps.Execute: "a statement of oncebox's",
    steps.Fetch: "a look at oncebox's tables",
    steps.Save: "SAVEPOINT",
    steps.Restore: "ROLLBACK TO the savepoint",
    steps.Commit: "COMMIT",
    steps.Rollback: "ROLLBACK",
    steps.Side: "the marker of what is in hand",
    steps.Handle: "your handler",
    steps.Ask: "your reconciling hook",
    steps.Keep: "keeping the lease",
    steps.Next: "a look for the next message",
    steps.Settle: "the ack",
    steps.Flush: "the flush before the ack",
}


class Fault(msgspec.Struct, frozen=True):
    """What goes wrong: dying before or after step `number`, or in a handler at its `number`th line; or a
    conflict at the commit, after which the handler is run again in the same process."""

    kind: Kind
    number: int

    def told(self, trace: list[str], places: list[str]) -> str:
        """As a sentence."""
        match self.kind:
            case "line":
                where = places[self.number - 1] if self.number <= len(places) else "?"
                return f"the process dies inside the handler, before {where}"
            case "rerun":
                return "the database refuses the commit (a deadlock), and the handler runs again"
        at = self.number - (self.kind == "before")
        done = [name for name in trace[:at] if name != WORDS[steps.Next]]
        left = [name for name in trace[at:] if name != WORDS[steps.Next]]
        place = f"step {self.number} of {len(trace)}"
        if not done or not left:
            return f"the process dies {'after ' + done[-1] if done else 'before ' + left[0]} ({place})"
        return f"the process dies after {done[-1]} and before {left[0]} ({place})"


class Meeting:
    """Handlers that have returned wait here for one another, a moment at most: what each has read before
    the others committed shows then."""

    def __init__(self, count: int, seconds: float = 0.3) -> None:
        self._barrier = threading.Barrier(count)
        self._seconds = seconds

    def wait(self) -> None:
        """Until all are here, or it has become clear that they can't be."""
        with suppress(threading.BrokenBarrierError):
            self._barrier.wait(self._seconds)


class Steps:
    """Counts the steps of one process's life and lets its fault happen, once."""

    def __init__(
        self,
        fault: Fault | None = None,
        *,
        watch: Watch | None = None,
        trace: bool = False,
        committed: Callable[[], None] | None = None,
        meeting: Meeting | None = None,
    ) -> None:
        self.fault = fault
        self.kinds: list[type[Step]] = []
        self.handled = 0
        """Calls of handlers that run inside a transaction."""
        self.happened = False
        self.is_dead = False
        self._watch = watch
        self._committed = committed
        """Called after every commit."""
        self._meeting = meeting
        tracing = trace or (fault is not None and fault.kind == "line")
        self.lines = (
            Lines(fault.number if fault is not None and fault.kind == "line" else 0) if tracing else None
        )

    @property
    def names(self) -> list[str]:
        """The steps in words, as they came."""
        return [WORDS.get(kind, kind.__name__) for kind in self.kinds]

    def around(self, perform: Perform, *, is_async: bool) -> Perform:
        """`perform`, counted, with the fault in its place."""

        def blocking(step: Step) -> Any:
            number = self._enter(step)
            with self._at(step):
                reply = perform(step)
            if self._meeting is not None and type(step) is steps.Handle:
                self._meeting.wait()
            self._leave(number)
            return reply

        async def awaiting(step: Step) -> Any:
            number = self._enter(step)
            with self._at(step):
                reply = perform(step)
                if isawaitable(reply):
                    reply = await reply
            if self._meeting is not None and type(step) is steps.Handle:
                await asyncio.to_thread(self._meeting.wait)
            self._leave(number)
            return reply

        return awaiting if is_async else blocking

    def _enter(self, step: Step) -> int:
        if self.is_dead:
            raise Died
        self.kinds.append(type(step))
        number = len(self.kinds)
        if number > STEPS_MAX:
            raise errors.UsageError(f"{number:,} steps and no end: the message comes back again and again")
        self._strike("before", number)
        if (
            type(step) is steps.Commit
            and self.handled
            and self.fault is not None
            and self.fault.kind == "rerun"
            and not self.happened
        ):
            self.happened = True
            raise errors.Conflict("injected: as after a deadlock")
        return number

    def _leave(self, number: int) -> None:
        if self.is_dead:
            raise Died
        if self._committed is not None and self.kinds[number - 1] is steps.Commit:
            self._committed()
        self._strike("after", number)

    def _strike(self, when: Kind, number: int) -> None:
        fault = self.fault
        if fault is not None and fault.kind == when and fault.number == number:
            self.happened = self.is_dead = True
            raise Died

    @contextmanager
    def _at(self, step: Step) -> Iterator[None]:
        """A handler's surroundings: its lines are counted, and what leaves the process is noted."""
        if not isinstance(step, steps.Handle):
            yield
            return
        is_effect = step.items[0].handler is not None and step.items[0].handler.effect is not None
        if is_effect:
            with self._watch.paused() if self._watch is not None else _nothing():
                yield
            return
        self.handled += 1
        with (
            self._watch.handling() if self._watch is not None else _nothing(),
            self.lines.tracing() if self.lines is not None else _nothing(),
        ):
            try:
                yield
            except BaseException:
                self._look_for_death()
                raise
        self._look_for_death()

    def _look_for_death(self) -> None:
        # Also when the handler caught it: a dead process catches nothing.
        if self.lines is not None and self.lines.struck:
            self.happened = self.is_dead = True
            raise Died from None


@contextmanager
def _nothing() -> Iterator[None]:
    yield
