"""Flows of people, of time and of order, and what must be there before them."""

from __future__ import annotations

from oncebox.core import sweep
from oncebox.core.audit import Act
from oncebox.core.dead import Choice, Decision, decide
from oncebox.core.keys import close_gaps
from oncebox.core.steps import Op, Script
from oncebox.core.unfinished import decide_claims
from oncebox.core.work import Item, Work
from oncebox.policy import Backoff, Policy
from proof.schedules.world import World
from tests.crash.deciding import leave_unfinished

WINDOW_SECONDS = 86_400.0
STEP = 1_000_000


def one_dead(world: World) -> None:
    """Message `m` has used up its attempts."""
    if not world.has("m"):
        world.store("m")
        world.work_off(Policy(mode="stored", retry=Backoff(attempts=1)), "fails")


def one_old(world: World) -> None:
    """Message `o` was done a year ago, and what waits was noted then."""
    if world.has("o"):
        return
    world.store("o")
    world.work_off(Policy(mode="stored"))
    p, name = world.prefix, world.name
    year = 365 * 86_400_000_000 if world.is_sqlite else "interval '1 year'"
    own = f"WHERE consumer = '{name}'"
    world.reader.execute(f"UPDATE {p}ledger SET received = received - {year}, again = again - {year} {own}")
    world.reader.execute(
        f"INSERT INTO {p}low (consumer, at, seq) SELECT '{name}', min(received), max(seq) + 1 FROM {p}ledger {own}"
    )
    never = "0" if world.is_sqlite else "'-infinity'"
    world.reader.execute(f"UPDATE {p}sweep SET until = {never}, place = 0")
    world.old = (world.name, "s", "o")


def one_unfinished(world: World) -> None:
    """The guard has claimed message `a`, its block has raised, and was committed all the same."""
    leave_unfinished(world.url, world.name, [world.message("a")])


def redrive_claims(world: World, work: Work, items: list[Item]) -> Op[None]:
    """A person takes back what the guard has left."""
    yield from _decide_claims(work, "redrive")


def discard_claims(world: World, work: Work, items: list[Item]) -> Op[None]:
    """A person lets go what the guard has left."""
    yield from _decide_claims(work, "discard")


def _decide_claims(work: Work, decision: Decision) -> Op[None]:
    act = Act(verb=f"dead {decision}", who="somebody", reason="it was looked at")
    yield from decide_claims(work.queries, decision, Choice(consumer=work.consumer), act)


def decide_all(world: World, work: Work, items: list[Item]) -> Op[None]:
    """A person redrives all that is dead, and lets go what is dead then."""
    decisions: tuple[Decision, ...] = ("redrive", "discard")
    for decision in decisions:
        act = Act(verb=f"dead {decision}", who="somebody", reason="it was looked at")
        yield from decide(work.queries, decision, Choice(consumer=work.consumer), act)


def purge(world: World, work: Work, items: list[Item]) -> Op[None]:
    """Two walks."""
    queries, windows = work.queries, {work.consumer: WINDOW_SECONDS}
    for _ in range(2):
        walk = yield from sweep.begin_walk(queries, work.worker)
        if walk is not None:
            yield from sweep.note_marks(queries, windows, walk)
            yield from sweep.sweep_step(queries, windows, walk, work.worker, STEP)
            yield from sweep.end_walk(queries, work.worker)


def gaps(world: World, work: Work, items: list[Item]) -> Op[None]:
    """An hour passes, then the policy's word about what has waited for too long."""
    for _ in range(2):
        yield Script(world.gaps_later())
        yield from close_gaps(work)
