"""The flows that can meet. To add one: a line here, and a pin of the new count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from oncebox.core.batch import inline_batch
from oncebox.core.effects import work_effect
from oncebox.core.inline import stream
from oncebox.core.leased import work_long
from oncebox.core.reap import reap_lapsed
from oncebox.core.receiving import receive
from oncebox.core.relay import Relaying, lease, send, take
from oncebox.core.steps import Op, Script
from oncebox.core.stored import bury_unknown, work_batch
from oncebox.core.work import Item, Work
from oncebox.policy import Backoff, Mode, Policy
from proof.schedules.deciding import (
    decide_all,
    discard_claims,
    gaps,
    one_dead,
    one_old,
    one_unfinished,
    purge,
    redrive_claims,
)
from proof.schedules.ordering import ORDERING
from proof.schedules.world import AT_ONCE, World

Make = Callable[[World, Work, list[Item]], Op[Any]]


@dataclass(frozen=True)
class Flow:
    """What one worker does. Those of one family work on the same messages."""

    name: str
    family: str
    make: Make
    deliver: tuple[str, ...] = ()
    store: tuple[str, ...] = ()
    """What must wait in the queue before."""
    words: dict[str, Any] = field(default_factory=dict)
    """Words of its policy."""
    word: str = ""
    """What its handler does: `fails`, `discards`."""
    first: Callable[[World], None] = lambda world: None
    """What happened before anything else was there."""
    before: Callable[[World], None] = lambda world: None
    sends: bool = False
    small: bool = False
    """So few steps that every order can be tried."""

    @property
    def mode(self) -> Mode:
        return "inline" if self.family in ("inline", "outgoing") else "stored"

    @property
    def ordering(self) -> str:
        """`key`, `sequence`, or nothing."""
        return {"by key": "key", "by sequence": "sequence"}.get(self.family, "")

    @cached_property
    def policy(self) -> Policy:
        return Policy(mode=self.mode, **{"retry": AT_ONCE, **ORDERING[self.ordering], **self.words})


def _stream(world: World, work: Work, items: list[Item]) -> Op[Any]:
    return stream(work, items.pop(0))


def _one_by_one(world: World, work: Work, items: list[Item]) -> Op[Any]:
    """As when nothing is at hand: no claim travels with a commit."""
    own, items[:] = items[:], []
    for item in own:
        yield from stream(work, item)


def _batch(world: World, work: Work, items: list[Item]) -> Op[Any]:
    left, _ = yield from inline_batch(work, items)
    for item in left:
        yield from stream(work, item)


def _chained_batches(world: World, work: Work, items: list[Item]) -> Op[Any]:
    """One commit opens the next one's transaction."""
    left, opened = yield from inline_batch(work, items[:1], None, lambda: True)
    more, _ = yield from inline_batch(work, items[1:], opened)
    for item in (*left, *more):
        yield from stream(work, item)


def _receive(world: World, work: Work, items: list[Item]) -> Op[Any]:
    """Two batches, each until all of it is answered."""
    for batch in (items[:2], items[2:]):
        for _ in range(5):
            batch = yield from receive(work, batch)
            if not batch:
                break


def _ticking(world: World, work: Work, items: list[Item]) -> Op[Any]:
    for _ in range(5):
        yield Script(world.later())


def _haunted(world: World) -> None:
    """A process has died with everything in hand that waits."""
    p = world.prefix
    rows = world.reader.execute(f"SELECT seq FROM {p}queue WHERE consumer = '{world.name}'").fetchall()
    seqs = [row[0] for row in rows]
    ghost = f"{world.name}-ghost"
    if world.is_sqlite:
        world.reader.execute(
            "INSERT OR IGNORE INTO oncebox_worker (id, host, pid, started, heartbeat) VALUES (?, 'here', 1, 0, 0)",
            (ghost,),
        )
        world.reader.execute(
            "INSERT OR IGNORE INTO oncebox_hand (worker, slot, consumer, seqs, at) VALUES (?, 1, ?, ?, 0)",
            (ghost, world.name, str(seqs)),
        )
        return
    world.reader.execute(
        "INSERT INTO oncebox.worker (id, host, pid, heartbeat) VALUES (%s, 'here', 1, '2000-01-01') "
        "ON CONFLICT DO NOTHING",
        (ghost,),
    )
    world.reader.execute(
        "INSERT INTO oncebox.hand (worker, slot, consumer, seqs, at) VALUES (%s, 1, %s, %s, '2000-01-01') "
        "ON CONFLICT DO NOTHING",
        (ghost, world.name, seqs),
    )


def _suspected(world: World) -> None:
    world.reader.execute(
        f"UPDATE {world.prefix}queue SET deaths = 1 WHERE consumer = '{world.name}' AND message_id IN ('s', 'z')"
    )


def _fresh_outbox(world: World) -> None:
    never = "0" if world.is_sqlite else "'-infinity'"
    world.reader.execute(f"DELETE FROM {world.prefix}outbox")
    world.reader.execute(f"UPDATE {world.prefix}slot SET relay = '', until = {never} WHERE slot < 32")


def _relay(world: World, work: Work, items: list[Item]) -> Op[Any]:
    relaying = Relaying(work.queries, work.worker)
    for _ in range(2):
        yield from lease(relaying)
        yield from send(relaying, (yield from take(relaying)))


def _twice(flow: Callable[[Work], Op[Any]]) -> Make:
    def make(world: World, work: Work, items: list[Item]) -> Op[Any]:
        for _ in range(2):
            yield from flow(work)

    return make


def _suspects(work: Work) -> Op[Any]:
    return work_batch(work, suspect=True)


def _reap(work: Work) -> Op[Any]:
    return reap_lapsed(work, 60.0)


def _bury(work: Work) -> Op[Any]:
    return bury_unknown(work, ["t", "long", "call"])


ONE_TRY = {"retry": Backoff(attempts=1)}
FLOWS = (
    Flow("inline", "inline", _one_by_one, ("a", "b")),
    Flow("inline chain", "inline", _stream, ("b", "a")),
    Flow("inline redelivered", "inline", _one_by_one, ("a*", "b")),
    Flow("inline batch", "inline", _batch, ("a", "b"), words={"batch": 2}),
    Flow("inline batches, chained", "inline", _chained_batches, ("a", "b"), words={"batch": 2}),
    Flow("inline failing", "inline", _one_by_one, ("a", "b"), word="fails"),
    Flow("inline dying", "inline", _one_by_one, ("a", "b"), words=ONE_TRY, word="fails"),
    Flow("inline conflict", "inline", _one_by_one, ("a!", "b")),
    Flow("inline discard", "inline", _one_by_one, ("a", "b"), word="discards"),
    Flow("inline group", "inline", _stream, ("a", "b"), words={"durability": "group"}),
    Flow("receive", "stored", _receive, ("c", "a", "d", "b"), store=("a",)),
    Flow("stored", "stored", _twice(work_batch), store=("a", "b")),
    Flow("stored batch", "stored", _twice(work_batch), store=("a", "b"), words={"batch": 2}),
    Flow("stored failing", "stored", _twice(work_batch), store=("a",), word="fails"),
    Flow("stored suspect", "stored", _twice(_suspects), store=("a", "s", "z"), before=_suspected),
    Flow("lease", "stored", _twice(work_long), store=("l",)),
    Flow("call", "stored", _twice(work_effect), store=("x",)),
    Flow("reap", "stored", _twice(_reap), store=("a",), before=_haunted),
    Flow("bury unknown types", "stored", _twice(_bury), store=("u", "a"), words={"unknown_type_seconds": 0.0}),
    Flow("redrive, discard", "stored", decide_all, first=one_dead),
    Flow("purge", "stored", purge, first=one_old, store=("a",)),
    Flow("hours pass", "stored", _ticking),
    Flow("receive in order", "by key", _receive, ("c", "a", "d", "b"), store=("a",)),
    Flow("stored in order", "by key", _twice(work_batch), store=("a", "b")),
    Flow("stored in order, failing", "by key", _twice(work_batch), store=("a", "b"), word="fails"),
    Flow("receive by sequence", "by sequence", _receive, ("b", "a", "e", "d"), store=("c",)),
    Flow("stored by sequence", "by sequence", _twice(work_batch), store=("a", "c")),
    Flow("gap", "by sequence", gaps, store=("c", "d")),
    Flow("publish", "outgoing", _stream, ("a", "b"), sends=True, before=_fresh_outbox),
    Flow("relay", "outgoing", _relay, sends=True, before=_fresh_outbox),
    Flow("hours pass, relays", "outgoing", _ticking, sends=True),
)  # fmt: skip
BY_NAME = {flow.name: flow for flow in FLOWS}
SMALL = (
    Flow("one inline", "inline", _stream, ("a",), small=True),
    Flow("one redelivered", "inline", _stream, ("a*",), small=True),
    Flow("one conflict", "inline", _stream, ("a!",), small=True),
)
"""One message each: every order there is."""
DELIVERED = (
    *SMALL,
    Flow("one in a batch", "inline", _batch, ("a",), words={"batch": 2}),
    Flow("one received", "stored", _receive, ("a",)),
    Flow("one conflict received", "stored", _receive, ("a!",)),
)
CLAIMS = (
    Flow("redrive claims", "claims", redrive_claims, first=one_unfinished),
    Flow("discard claims", "claims", discard_claims, first=one_unfinished),
)
"""These meet another delivery of what the guard has left."""
BY_NAME |= {flow.name: flow for flow in (*DELIVERED, *CLAIMS)}


def pairs() -> list[tuple[Flow, ...]]:
    """Every two flows that can meet, a flow with itself included."""
    return [
        (one, other)
        for at, one in enumerate(FLOWS)
        for other in FLOWS[at:]
        if one.family == other.family and not (one is other and one.name.startswith("hours"))
    ]


def small_pairs() -> list[tuple[Flow, ...]]:
    """Every two of the small flows; and each delivery with what a person decides about its claim."""
    found = [(one, other) for at, one in enumerate(SMALL) for other in SMALL[at:]]
    return [*found, *((one, other) for one in DELIVERED for other in CLAIMS)]


TRIPLES = (
    ("inline", "inline", "inline"), ("inline", "inline redelivered", "inline dying"),
    ("inline batch", "inline chain", "inline group"), ("inline", "inline conflict", "inline batch"),
    ("receive", "stored", "stored batch"), ("receive", "receive", "stored failing"),
    ("lease", "lease", "hours pass"),  ("call", "call", "hours pass"),
    ("stored", "reap", "hours pass"), ("stored batch", "stored failing", "reap"),
    ("stored suspect", "stored", "reap"),
    ("redrive, discard", "redrive, discard", "stored failing"), ("purge", "receive", "stored"),
    ("receive in order", "stored in order", "stored in order, failing"),
    ("receive by sequence", "stored by sequence", "gap"), ("publish", "relay", "relay"),
    ("relay", "relay", "hours pass, relays"),
)  # fmt: skip


def triples() -> list[tuple[Flow, ...]]:
    """Three at once, where a third one can make a difference."""
    return [tuple(BY_NAME[name] for name in names) for names in TRIPLES]
