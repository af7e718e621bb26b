"""What people do and what time does, for the state machine: redrive, discard, purge, months that pass, a clock
that jumps."""

from __future__ import annotations

from typing import Any

from oncebox.core import sweep
from oncebox.core.audit import Act
from oncebox.core.dead import Choice, Decision, decide
from oncebox.core.steps import Op
from oncebox.core.work import Work
from proof.schedules.world import World
from tests.crash.checker import Sent

MONTHS_DAYS = 90
"""What passes at once, be it time or the clock."""
WINDOW_DAYS = 30
STEP = 1_000_000


def deciding(work: Work, decision: Decision) -> Op[Any]:
    """Redrive or discard all that is dead."""
    act = Act(verb=f"dead {decision}", who="somebody", reason="it was looked at")
    return decide(work.queries, decision, Choice(consumer=work.consumer), act)


def purging(work: Work) -> Op[None]:
    """A walk through the whole ledger."""
    queries, windows = work.queries, {work.consumer: WINDOW_DAYS * 86_400.0}
    walk = yield from sweep.begin_walk(queries, work.worker)
    if walk is None:
        return
    yield from sweep.note_marks(queries, windows, walk)
    yield from sweep.sweep_step(queries, windows, walk, work.worker, STEP)
    yield from sweep.end_walk(queries, work.worker)


def never_walked(world: World) -> None:
    """As in a database in which nothing was ever purged; and nobody walks."""
    never = "0" if world.is_sqlite else "'-infinity'"
    world.reader.execute(
        f"UPDATE {world.prefix}sweep SET holder = '', until = {never}, place = 0, passed = NULL, cutoff = NULL"
    )


def nobody_walks(world: World) -> None:
    """A minute passes for the lease of whoever died while walking."""
    never = "0" if world.is_sqlite else "'-infinity'"
    world.reader.execute(f"UPDATE {world.prefix}sweep SET until = {never}")


def grow_old(world: World, *, clock_jumps: bool) -> None:
    """Three months. When only the clock jumps, the last walk seems as long ago; else walks went on."""
    p, name = world.prefix, world.name
    span = MONTHS_DAYS * 86_400_000_000 if world.is_sqlite else f"interval '{MONTHS_DAYS} days'"
    texts = [
        f"UPDATE {p}ledger SET received = received - {span}, again = again - {span} WHERE consumer = '{name}'",
        f"UPDATE {p}ledger SET finished = finished - {span} WHERE consumer = '{name}'",
        f"UPDATE {p}low SET at = at - {span} WHERE consumer = '{name}'",
    ]
    if clock_jumps:
        texts.append(f"UPDATE {p}sweep SET passed = passed - {span}, cutoff = cutoff - {span}")
    for text in texts:
        world.reader.execute(text)


def forget(world: World, message_id: str) -> None:
    """What the database has forgotten, the harness forgets: it may come anew, and take effect anew."""
    world.reader.execute(
        f"DELETE FROM effects WHERE consumer = '{world.name}' AND message_id = '{message_id}'"
    )
    # What is out at a worker that died comes again by itself, with what it carries.
    out = [message for message in world.pending.values() if message.id == message_id]
    world.sent = [sent for sent in world.sent if sent.key[2] != message_id]
    world.sent += [Sent((world.name, message.source, message.id), message.payload) for message in out]
    world.acked = [key for key in world.acked if key[2] != message_id]
