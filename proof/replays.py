"""Replays, for the state machine: in each run, what was done when it began takes effect once more."""

from __future__ import annotations

from collections import Counter
from typing import Any

from oncebox import errors
from oncebox.core.audit import Act
from oncebox.core.replay import replay
from oncebox.core.replay_terms import Order
from oncebox.core.steps import Op
from oncebox.core.work import Work
from proof.schedules.world import World
from tests.crash.effects import AGAIN, tables

POLICY: dict[str, Any] = {"keep_payload": "always", "replay": "rebuild"}
"""What a consumer must say to be replayed."""
REFUSALS = (errors.ReplayFailed, errors.UsageError)


class Replays:
    """One consumer's: what the open run covers, and how often each of that was replayed before it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.open: dict[str, int] | None = None
        self._covered: dict[str, int] = {}
        self._counts: Counter[str] = Counter()

    def flow(self, work: Work, done: list[str]) -> Op[Any]:
        """Begin a run over what is done, or go on with the one that is open."""
        self._counts = self._replayed()
        self._covered = {name: self._counts[name] for name in done} if self.open is None else self.open
        work.effect_types = []  # nobody is called here, and calls are not replayed
        return replay(work, Order(act=Act(verb="replay", who="somebody", reason="a new column")))

    def look(self, ended: bool, refusal: Exception | None, *, fails: bool) -> None:
        """Once more in this run, whatever broke it off in between; and no more than that."""
        now = self._replayed()
        for name in self._counts.keys() | now.keys() | self._covered.keys():
            before = self._counts[name]
            first = self._covered.get(name, before)
            allowed = {before, first + 1} if name in self._covered else {before}
            if ended and refusal is None:
                allowed.discard(first if name in self._covered else -1)
            assert now[name] in allowed, (
                f"{name} was replayed {now[name]} times, not one of {sorted(allowed)}"
            )
        if isinstance(refusal, errors.ReplayFailed):
            assert fails, f"nothing failed, and the replay did: {refusal}"
        elif refusal is not None:
            assert self.open is None, f"a replay is open: {refusal}"
            assert not self._covered, f"there is something to replay: {refusal}"
        is_open = self._is_open()
        assert not (is_open and ended and refusal is None), "the replay has ended, and is open"
        self.open = self._covered if is_open else None

    def forget(self, name: str) -> None:
        """It was purged."""
        if self.open is not None:
            self.open.pop(name, None)

    def _replayed(self) -> Counter[str]:
        effects = tables(self.world.reader, self.world.name).effects
        return Counter(key[2] for key in effects if key[1] == AGAIN)

    def _is_open(self) -> bool:
        text = (
            f"SELECT 1 FROM {self.world.prefix}replay WHERE consumer = '{self.world.name}' AND ended IS NULL"
        )
        return bool(self.world.reader.execute(text).fetchall())
