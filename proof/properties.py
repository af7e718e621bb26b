"""A state machine that does to a real database whatever comes to its mind, beside a dictionary that knows
what must come of it: deliveries, duplicates, other payloads, any order, crashes at any step, hours that pass,
people who redrive, discard and replay, months, clocks that jump, and purges.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from oncebox.core.dead import Decision
from oncebox.core.inline import stream
from oncebox.core.leased import work_long
from oncebox.core.outcomes import Status
from oncebox.core.reap import reap_lapsed
from oncebox.core.receiving import receive
from oncebox.core.steps import Op
from oncebox.core.stored import work_batch
from oncebox.core.work import Item
from oncebox.policy import Backoff, Mode, Policy
from proof.deciding import (
    MONTHS_DAYS,
    WINDOW_DAYS,
    deciding,
    forget,
    grow_old,
    never_walked,
    nobody_walks,
    purging,
)
from proof.replays import POLICY, REFUSALS, Replays
from proof.schedules.world import World
from tests.crash.checker import DISCARDED
from tests.crash.effects import tables

IDS = ("a", "b", "l")
"""`l` is stored with a long handler."""
FAILS = Policy(mode="inline", retry=Backoff(attempts=2, base_seconds=0))


class Machine(RuleBasedStateMachine):
    """One consumer. `known` is the model: what each id must be, and with which payload."""

    world: ClassVar[World]
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, tuple[str, bytes]] = {}
        self.waiting: list[str] = []
        self.days: dict[str, int] = {}
        """How old what is known seems to be."""
        self.jumped_days: int | None = None
        """How long ago the last walk seems to be, because the clock jumped; None: nobody has walked."""

    @initialize(mode=st.sampled_from(["inline", "stored"]), busy=st.booleans())
    def begin(self, mode: Mode, busy: bool) -> None:
        """`busy`: some messages are done already."""
        self.world.reset()
        never_walked(self.world)
        self.mode = mode
        self.world.queues = mode == "stored"
        retry = Backoff(attempts=3, base_seconds=0)
        self.policy = Policy(mode=mode, retry=retry, crash_limit=50, **POLICY)
        self.replays = Replays(self.world)
        self._hire()
        for name in ("a", "b") if busy else ():
            self.publish(name, other=False, again=0)
            self.deliver(0, fails=False, crash=None)
            if mode == "stored":
                self.handle(long=False, fails=False, crash=None)

    def _hire(self) -> None:
        self.work = self.world.work(self.policy)
        self.world.equip(self.world.hands[0], self.work, [])
        self.world.beat()

    # Rules.

    @rule(name=st.sampled_from(IDS), other=st.booleans(), again=st.integers(0, 2))
    def publish(self, name: str, other: bool, again: int) -> None:
        """A producer sends; a broker may deliver it more than once. Inline there are no long handlers."""
        name = "c" if name == "l" and self.mode == "inline" else name
        self.waiting += [name + ("!" if other else "")] * (1 + again)

    @precondition(lambda self: self.waiting)
    @rule(at=st.integers(0, 50), fails=st.booleans(), crash=st.none() | st.integers(0, 9))
    def deliver(self, at: int, fails: bool, crash: int | None) -> None:
        """Any of them, in any order; its handler may fail, its process may die at any step."""
        spec = self.waiting.pop(at % len(self.waiting))
        item = self.world.deliver(spec, self.mode)
        self._set_failing(fails)
        flow = stream(self.work, item) if self.mode == "inline" else receive(self.work, [item])
        if self._run(flow, crash):
            assert item.outcome is not None
            self._expect(item, item.outcome.status, fails)
        else:
            self._look(item.message.id, item.message.payload)

    @precondition(lambda self: self.world.queues)
    @rule(long=st.booleans(), fails=st.booleans(), crash=st.none() | st.integers(0, 9))
    def handle(self, long: bool, fails: bool, crash: int | None) -> None:
        """A stored worker's turn."""
        self._set_failing(fails)
        long = long and self.mode == "stored"
        self._run(work_long(self.work) if long else work_batch(self.work), crash)
        for name in self.known:
            self._look(name, b"")

    @precondition(lambda self: self.world.queues)
    @rule()
    def handle_suspects(self) -> None:
        self._set_failing(False)
        self._run(work_batch(self.work, suspect=True), None)
        for name in self.known:
            self._look(name, b"")

    @rule()
    def hours_pass(self) -> None:
        """Leases lapse, hearts have not beaten for long; the living beat at once."""
        self.world.hands[0].session.execute_text(self.world.later())
        self._hire()

    @rule()
    def reap(self) -> None:
        self._run(reap_lapsed(self.work, 60.0), None)

    @rule(decision=st.sampled_from(["redrive", "discard"]), crash=st.none() | st.integers(0, 5))
    def decide(self, decision: Decision, crash: int | None) -> None:
        """A person, about all that is dead; inline, too, what is redriven is in the queue."""
        self.world.queues = True
        done = self._run(deciding(self.work, decision), crash)
        becomes = "waiting" if decision == "redrive" else "discarded"
        for name, (state, payload) in list(self.known.items()):
            if state == "dead":
                now = self._state(name)
                assert now == becomes or (now == "dead" and not done), f"{name} was dead, {decision}: {now}"
                self.known[name] = (now, payload)

    @precondition(lambda self: any(state == "done" for state, _ in self.known.values()))
    @rule(fails=st.booleans(), crash=st.none() | st.integers(0, 12), goes_on=st.booleans())
    def replay(self, fails: bool, crash: int | None, goes_on: bool) -> None:
        """A person has all that is done handled again. A run that was broken off goes on where it was, at once
        or another time."""
        self._replay(fails, crash)
        if goes_on:
            self._replay(False, None)

    @rule(walked=st.booleans())
    def months_pass(self, walked: bool) -> None:
        """`walked`: at their end somebody purges."""
        grow_old(self.world, clock_jumps=False)
        self.days = {name: days + MONTHS_DAYS for name, days in self.days.items()}
        if walked:
            self.purge(None)

    @rule(walked=st.booleans())
    def clock_jumps(self, walked: bool) -> None:
        """It goes ahead by months: nothing may be purged because of that alone. `walked`: somebody purges right
        before and right after."""
        if walked:
            self.purge(None)
        grow_old(self.world, clock_jumps=True)
        self.days = {name: days + MONTHS_DAYS for name, days in self.days.items()}
        if self.jumped_days is not None:
            self.jumped_days += MONTHS_DAYS
        if walked:
            self.purge(None)

    @rule(crash=st.none() | st.integers(0, 9))
    def purge(self, crash: int | None) -> None:
        """What is done and past its window may be gone, and nothing else; inline, all of it is."""
        behind = max(0, (self.jumped_days or 0) - 1)
        nobody_walks(self.world)
        done = self._run(purging(self.work), crash)
        if done:
            self.jumped_days = behind
        else:
            never_walked(self.world)
            self.jumped_days = None
        graves = {grave.key[2] for grave in tables(self.world.reader, self.world.name).dead}
        for name, (state, _) in list(self.known.items()):
            old = self.days[name] > WINDOW_DAYS + behind
            if self._state(name) != "new":
                kept = self.world.queues or name in graves or state in KEPT
                assert kept or not done or not old, f"{name} is {state}, past its window, and was not purged"
                continue
            assert old, f"{name} was purged at the age of {self.days[name]} days, {behind} of them in doubt"
            assert state not in KEPT, f"{name} was purged, and it was {state}"
            del self.known[name], self.days[name]
            forget(self.world, name)
            self.replays.forget(name)

    # What must be.

    def _replay(self, fails: bool, crash: int | None) -> None:
        self._set_failing(fails)
        done = [name for name, (state, _) in self.known.items() if state == "done"]
        ended, refusal = True, None
        try:
            ended = self._run(self.replays.flow(self.work, done), crash)
        except REFUSALS as error:
            refusal = error
        self.replays.look(ended, refusal, fails=fails)

    def _set_failing(self, fails: bool) -> None:
        self.world.words[id(self.world.hands[0].session.raw)] = "fails" if fails else ""

    def _run(self, op: Op[Any], crash: int | None) -> bool:
        """To its end, or until the process dies before the step of that number."""
        type(self).steps += 1
        perform = self.world.hands[0].perform
        try:
            step = next(op)
            while crash is None or crash > 0:
                crash = None if crash is None else crash - 1
                try:
                    reply = perform(step)
                except Exception as error:
                    step = op.throw(error)
                else:
                    step = op.send(reply)
        except StopIteration:
            return True
        op.close()
        self.world.hands[0].vanish()
        self.world.crashed.add(self.work.worker)
        self._hire()
        return False

    def _expect(self, item: Item, status: Status, fails: bool) -> None:
        """The outcome that the dictionary foretells."""
        name, payload = item.message.id, item.message.payload
        state, known = self.known.get(name, ("new", payload))
        if known != payload:
            foretold = {Status.DEAD}
        elif state == "new" and self.mode == "stored":
            foretold = {Status.STORED}
        elif state == "new":
            foretold = {Status.RETRY, Status.DEAD} if fails else {Status.PROCESSED}
        else:
            foretold = ANSWERED[state]
        if self.work.marks_first or self.mode == "inline":
            # Somebody who died still claims to have it in hand: put off until that death is counted.
            foretold = foretold | {Status.IN_FLIGHT}
        assert status in foretold, f"{name} was {state}; {status}, and not one of {sorted(foretold)}"
        self._look(name, payload)

    def _state(self, name: str) -> str:
        """What the tables say; and effects must agree."""
        found = tables(self.world.reader, self.world.name)
        key = (self.world.name, "s", name)
        effects = found.effects.count(key)
        assert effects <= 1, f"{name} took effect {effects} times"
        row = next((row for row in found.ledger if row.key == key), None)
        if row is None:
            return "new"
        if any(waits.key == key for waits in found.queue):
            now = "waiting"
        elif any(grave.key == key and grave.fingerprint == row.fingerprint for grave in found.dead):
            now = "dead"
        else:
            now = "discarded" if row.state == DISCARDED else "done"
        assert (now == "done") == (effects == 1), f"{name} is {now}, with {effects} effects"
        return now

    def _look(self, name: str, payload: bytes) -> None:
        """What the tables say may only be what it was, or what comes after that."""
        now = self._state(name)
        before, known = self.known.get(name, ("new", payload))
        assert now in AFTER[before], f"{name} was {before}, and is {now}"
        if now != "new":
            self.known[name] = (now, known)
            self.days.setdefault(name, 0)

    def teardown(self) -> None:
        if not hasattr(self, "mode"):
            return
        for spec in self.waiting:
            self.world.deliver(spec, self.mode)
        self.world.recover(self.mode)
        found = self.world.judge()
        assert not found, found


AFTER = {
    "new": {"new", "waiting", "done", "dead"},
    "waiting": {"waiting", "done", "dead"},
    "done": {"done"},
    "dead": {"dead"},
    "discarded": {"discarded"},
}
"""What may become of what, if nobody decides or purges."""
ANSWERED = {
    "done": {Status.DUPLICATE},
    "dead": {Status.DEAD},
    "waiting": {Status.WAITING},
    "discarded": {Status.DISCARDED},
}
"""What another delivery is told."""
KEPT = ("waiting", "dead")
"""What is never purged, however old."""
