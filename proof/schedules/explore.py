"""Choosing who moves next: every order where there are few, seeded random ones where there are many.

A schedule is the list of those who moved, in order; a step that had to wait for a lock is part of it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from oncebox.core.steps import Op, Step
from oncebox.core.work import Item
from proof.schedules.flows import Flow
from proof.schedules.hands import STUCK_SECONDS, Hands, Reply
from proof.schedules.world import World

MOVES_MAX = 600
TIE_SECONDS = 0.004
"""How often it is looked at whether the database has broken a tie."""
LEAST = 200
"""Distinct schedules wanted of every pair."""

MOST = 5_000
"""More than any two small flows have."""
TRIES = 2
"""Times as many are run at most: what is run twice was broken by time, not by order."""

Choose = Callable[[list[int]], int]


class Found(msgspec.Struct):
    """What was explored of one combination of flows."""

    flows: list[str]
    distinct: int = 0
    complete: bool = False
    """Every order there is was tried."""
    waits: int = 0
    """Schedules in which somebody had to wait for a lock."""
    violations: list[str] = []


class Actor:
    """A worker's flow, its hands, and the step it is about to take."""

    def __init__(self, op: Op[Any], hands: Hands) -> None:
        self.hands = hands
        self.op = op
        self.waits = False
        self.ended = False
        self.error: BaseException | None = None
        self.step: Step | None = None
        self._go_on(Reply())

    def _go_on(self, reply: Reply) -> None:
        try:
            if self.step is None:
                self.step = next(self.op)
            elif reply.error is not None:
                self.step = self.op.throw(reply.error)
            else:
                self.step = self.op.send(reply.value)
        except StopIteration:
            self.ended = True
        except Exception as error:
            # Out of the flow: its worker would pause and begin anew; here the recovery does.
            self.ended, self.error = True, error
            self.hands.session.rollback()

    def move(self) -> str:
        """Take the step, or find that it has to wait. Returns what is written into the schedule."""
        assert self.step is not None
        name = type(self.step).__name__
        reply = self.hands.start(self.step)
        if reply is None:
            self.waits = True
            return f"{name}…"
        self._go_on(reply)
        return name

    def look(self) -> bool:
        """Go on if what it waited for has come."""
        reply = self.hands.poll()
        if reply is not None:
            self.waits = False
            self._go_on(reply)
        return reply is not None


class Schedule:
    """One run of some flows, in the order that `choose` decides."""

    def __init__(self, world: World, flows: Sequence[Flow]) -> None:
        self.world = world
        self.flows = flows
        self.mode = flows[0].mode
        world.reset()
        self.moves: list[int] = []
        self.options: list[list[int]] = []
        self.trace: list[str] = []
        self.stuck: list[str] = []
        self.waited = False
        self.actors = self._actors()

    def _actors(self) -> list[Actor]:
        world, flows = self.world, self.flows
        world.sends = any(flow.sends for flow in flows)
        world.ordering = flows[0].ordering
        for flow in flows:
            flow.first(world)
        wanted = sorted({spec for flow in flows for spec in flow.store})
        if wanted:
            world.store(*wanted)
        for flow in flows:
            flow.before(world)
        actors = []
        for flow, hands in zip(flows, world.hands, strict=False):
            items: list[Item] = [world.deliver(spec, self.mode) for spec in flow.deliver]
            work = world.work(flow.policy)
            world.equip(hands, work, items)
            world.words[id(hands.session.raw)] = flow.word
            actors.append(Actor(flow.make(world, work, items), hands))
        world.beat()
        return actors

    def run(self, choose: Choose) -> list[str]:
        """Move them until all have ended; the violations that the end shows."""
        stalled: set[int] = set()
        while len(self.moves) < MOVES_MAX:
            ready = [at for at, actor in enumerate(self.actors) if not actor.ended and not actor.waits]
            if self.world.is_sqlite:
                ready = [at for at, actor in enumerate(self.actors) if not actor.ended and at not in stalled]
            if not ready:
                if all(actor.ended for actor in self.actors):
                    break
                if not self._wait():
                    self.stuck.append("I5: everybody waits for everybody")
                    break
                continue
            self.options.append(ready)
            at = choose(ready)
            self.moves.append(at)
            actor = self.actors[at]
            step = actor.step
            self.trace.append(f"{at}{actor.move()}")
            self.waited |= actor.waits
            if self.world.is_sqlite:
                # Others may move the lock; who has just found it taken need not look before.
                stalled = {*stalled, at} if actor.waits else set()
                actor.waits = False
            elif step is not None and not actor.waits and actor.hands.gave_up_locks(step):
                self._look()
        else:
            self.stuck.append(f"I5: still not done after {MOVES_MAX} moves")
        self.world.recover(self.mode)
        return self.stuck + self.world.judge()

    def _look(self) -> bool:
        """Let go on who can, and whom that one lets go on."""
        moved = False
        while any(actor.look() for actor in self.actors if actor.waits):
            moved = True
        return moved

    def _wait(self) -> bool:
        """Nobody can move: the database breaks the tie, or nobody does."""
        if self.world.is_sqlite:
            return False
        until = time.monotonic() + STUCK_SECONDS
        while not self._look():
            if time.monotonic() > until:
                return False
            time.sleep(TIE_SECONDS)
        return True


class Tree:
    """Which orders were run: none is run twice, and when none is left it is known."""

    def __init__(self) -> None:
        self.below: dict[int, Tree] = {}
        self.options: list[int] = []
        self.spent = False
        """Every order that begins so was run."""

    def fresh(self, ready: list[int]) -> list[int]:
        """Those whose move here leads to an order that was not run."""
        self.options = ready
        return [at for at in ready if at not in self.below or not self.below[at].spent]

    def close(self, moves: Sequence[int]) -> None:
        """This order was run to its end."""
        path = [self]
        for at in moves:
            path.append(path[-1].below.setdefault(at, Tree()))
        path.pop().spent = True
        for tree in reversed(path):
            tree.spent = not tree.fresh(tree.options)


def explore(world: World, flows: Sequence[Flow], seed: str, most: int = LEAST) -> Found:
    """Run `most` distinct schedules of these flows, by chance; those of the small ones, all of them."""
    names = [flow.name for flow in flows]
    found, chance, tree = Found(names), random.Random(f"{seed} {names}"), Tree()
    most = MOST if all(flow.small for flow in flows) else most
    world.clear()
    seen: set[tuple[str, ...]] = set()
    for _ in range(most * TRIES):
        schedule = Schedule(world, flows)
        words = schedule.run(by_chance(tree, chance))
        _note(found, schedule, words, is_new=(trace := tuple(schedule.trace)) not in seen)
        seen.add(trace)
        tree.close(schedule.moves)
        found.complete = tree.spent
        if found.complete or found.distinct >= most:
            break
    return found


def by_chance(tree: Tree, chance: random.Random) -> Choose:
    """Anybody, as long as the order is a new one."""
    # Now and then one runs ahead for a while: even odds alone hardly ever let it.
    keenness = chance.choice((0.0, 0.5, 0.8))
    here, last = tree, 0

    def choose(ready: list[int]) -> int:
        nonlocal here, last
        able = here.fresh(ready) or ready
        if last not in able or chance.random() >= keenness:
            last = chance.choice(able)
        here = here.below.setdefault(last, Tree())
        return last

    return choose


def _after(moves: Sequence[int]) -> Choose:
    """These moves, then whoever comes first."""
    forced = iter(moves)
    return lambda ready: next(forced, ready[0])


def _note(found: Found, schedule: Schedule, words: list[str], *, is_new: bool = True) -> None:
    found.distinct += is_new
    found.waits += is_new and schedule.waited
    if words and len(found.violations) < 5:
        moves = "".join(map(str, schedule.moves))
        names = "+".join(found.flows)
        found.violations.append(f"{names} | {moves} | {'; '.join(words)} | {' '.join(schedule.trace)}")


def replay(world: World, flows: Sequence[Flow], moves: str) -> tuple[list[str], list[str]]:
    """The schedule of these moves again; its trace, and what it violates."""
    schedule = Schedule(world, flows)
    words = schedule.run(_after([int(move) for move in moves]))
    return schedule.trace, words
