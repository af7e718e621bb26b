"""Whether what happened is allowed: the invariants of an inbox, checked from evidence alone.

The evidence is what a harness saw (sends, starts, acks, kills) and what the tables say afterwards;
nothing here looks at a database. A violation is a sentence that names the message and the rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Key = tuple[str, str, str]
"""Consumer, source, message id."""

DISCARDED, STALE, SUPPRESSED, UNFINISHED = 2, 3, 4, 1


@dataclass(frozen=True)
class Sent:
    """A message as the harness sent it. `ending` is what must become of it, where that is known."""

    key: Key
    payload: bytes = b""
    ending: str | None = None
    order_key: str | None = None


@dataclass(frozen=True)
class Start:
    """A handler began with a message. `killed`: its process died before it had settled the message."""

    key: Key
    attempt: int = 1
    killed: bool = False


@dataclass(frozen=True)
class Seen:
    """What the harness logged by itself, in the order in which it happened."""

    sent: Sequence[Sent] = ()
    acked: Sequence[Key] = ()
    starts: Sequence[Start] = ()
    deliveries: dict[str, int] | None = None
    """A broker's own figures: delivered, acked, nacked, released, dropped, timed_out, in_flight."""
    quiet: bool = True
    """Faults have stopped and the bound for recovery has passed: everything must have ended."""
    ordered: bool = False
    """Order per key was promised."""
    deaths: int = 0
    """Processes that were killed, or stopped for so long that they count as dead."""
    forgotten: int = 0
    """Starts whose count may be missing: a server that crashed may forget the last marker, and inline
    a first start is not marked, so that its death is known only once a second one is."""


@dataclass(frozen=True)
class Ledger:
    """A ledger row: the state column, and its place in the queue, if it was stored."""

    key: Key
    fingerprint: bytes = b""
    state: int = 0
    seq: int | None = None


@dataclass(frozen=True)
class Queued:
    """A queue row."""

    key: Key
    seq: int
    attempts: int = 0
    deaths: int = 0
    payload: bytes = b""


@dataclass(frozen=True)
class Dead:
    """A dead row."""

    key: Key
    reason: str
    fingerprint: bytes = b""
    attempts: int = 0
    payload: bytes = b""


@dataclass(frozen=True)
class Attempt:
    """An attempt row."""

    key: Key
    died: bool = False


@dataclass(frozen=True)
class Tables:
    """What the database says. `effects` come in the order in which they were written."""

    effects: Sequence[Key] = ()
    ledger: Sequence[Ledger] = ()
    queue: Sequence[Queued] = ()
    dead: Sequence[Dead] = ()
    attempts: Sequence[Attempt] = ()
    outgoing: Sequence[Key] | None = None
    """Outbox rows by the message that caused them; None where handlers publish nothing."""


@dataclass
class _Facts:
    """The evidence by key."""

    effects: Counter[Key]
    ledger: dict[Key, Ledger]
    queued: dict[Key, list[Queued]] = field(default_factory=lambda: defaultdict(list))
    dead: dict[Key, list[Dead]] = field(default_factory=lambda: defaultdict(list))

    def own_grave(self, key: Key) -> Dead | None:
        """The dead row of the message itself, not that of a conflicting payload beside it."""
        row = self.ledger.get(key)
        for grave in self.dead[key]:
            if grave.reason == "conflict":
                continue
            if row is None or not row.fingerprint or grave.fingerprint == row.fingerprint:
                return grave
        return None

    def ending(self, key: Key) -> str:
        """The derived state: queue and dead say so, else the ledger does."""
        row = self.ledger.get(key)
        if self.queued[key]:
            return "waiting"
        if self.own_grave(key) is not None:
            return "dead"
        if row is None:
            return "unknown"
        if row.state == UNFINISHED and self.dead[key]:
            return "conflict"  # another payload lies beside a claim: both wait for a person
        return {
            DISCARDED: "discarded", STALE: "stale", SUPPRESSED: "suppressed", UNFINISHED: "unfinished"
        }.get(row.state, "done")  # fmt: skip


def violations(seen: Seen, tables: Tables) -> list[str]:
    """Every way in which the evidence breaks I1 to I9, in words; empty when all of them hold."""
    facts = _Facts(Counter(tables.effects), {row.key: row for row in tables.ledger})
    for waiting in tables.queue:
        facts.queued[waiting.key].append(waiting)
    for grave in tables.dead:
        facts.dead[grave.key].append(grave)
    return [
        *_at_most_one_effect(facts, tables),
        *_acks_have_a_row(seen, facts),
        *_effects_and_done_rows_agree(facts, tables),
        *_outgoing_follows_effects(facts, tables),
        *_everything_ends(seen, facts),
        *_deaths_are_counted(seen, facts, tables),
        *_order_is_kept(seen, tables),
        *_nothing_unfinished_is_deleted(seen, facts),
        *_deliveries_are_answered(seen),
    ]


def name(key: Key) -> str:
    """A key as people read it."""
    consumer, source, message_id = key
    return f"message {message_id!r}{f' of {source!r}' if source else ''} for {consumer!r}"


def _at_most_one_effect(facts: _Facts, tables: Tables) -> Iterable[str]:
    for key, count in facts.effects.items():
        if count > 1:
            yield f"I1: {name(key)} took effect {count} times"
    for key, count in Counter(row.key for row in tables.ledger).items():
        if count > 1:
            yield f"I1: {name(key)} has {count} ledger rows; the unique key is gone"


def _acks_have_a_row(seen: Seen, facts: _Facts) -> Iterable[str]:
    for key in dict.fromkeys(seen.acked):
        if key not in facts.ledger:
            yield f"I2: {name(key)} was acked, and no ledger row says why: it is lost"
        elif facts.ending(key) == "unfinished":
            yield f"I2: {name(key)} was acked while its ledger row says unfinished"


def _effects_and_done_rows_agree(facts: _Facts, tables: Tables) -> Iterable[str]:
    for key in facts.effects:
        if (ending := facts.ending(key)) != "done":
            yield f"I3: {name(key)} took effect, but it is {ending}"
    for row in tables.ledger:
        if facts.ending(row.key) == "done" and not facts.effects[row.key]:
            yield f"I3: {name(row.key)} is done, but it had no effect: it is lost"
    for waiting in tables.queue:
        if waiting.key not in facts.ledger:
            yield f"I3: {name(waiting.key)} is in the queue without a ledger row"
    for grave in tables.dead:
        if grave.key not in facts.ledger:
            yield f"I3: {name(grave.key)} is among the dead without a ledger row"
    for row in tables.ledger:
        if row.state == DISCARDED and facts.own_grave(row.key) is not None:
            yield f"I3: {name(row.key)} is discarded, and among the dead"


def _outgoing_follows_effects(facts: _Facts, tables: Tables) -> Iterable[str]:
    if tables.outgoing is None:
        return
    outgoing = Counter(tables.outgoing)
    for key in sorted({*outgoing, *facts.effects}):
        if outgoing[key] != facts.effects[key]:
            yield f"I4: {name(key)} has {facts.effects[key]} effects and {outgoing[key]} outgoing rows"


def _everything_ends(seen: Seen, facts: _Facts) -> Iterable[str]:
    if not seen.quiet:
        return
    for sent in {sent.key: sent for sent in seen.sent}.values():
        ending = facts.ending(sent.key)
        if ending in ("waiting", "unknown", "unfinished"):
            yield f"I5: {name(sent.key)} was sent and is {ending}, though faults have stopped"
    for sent in seen.sent:
        if sent.ending == "conflict":
            if not any(grave.reason == "conflict" for grave in facts.dead[sent.key]):
                yield f"I5: {name(sent.key)} clashed with another payload, and is not among the dead"
        elif sent.ending is not None and (ending := facts.ending(sent.key)) != sent.ending:
            yield f"I5: {name(sent.key)} should have ended {sent.ending}, and is {ending}"


def _deaths_are_counted(seen: Seen, facts: _Facts, tables: Tables) -> Iterable[str]:
    killed: Counter[Key] = Counter()
    for start in seen.starts:
        if start.attempt < 1 + killed[start.key] - seen.forgotten:
            yield (
                f"I6: {name(start.key)} was started as attempt {start.attempt} after {killed[start.key]} "
                "processes had died with it"
            )
        killed[start.key] += start.killed
    recorded = Counter(attempt.key for attempt in tables.attempts if attempt.died)
    recorded |= Counter({row.key: row.deaths for row in tables.queue})
    for key, count in sorted(recorded.items()):
        if count > seen.deaths:
            yield f"I6: {name(key)} has {count} deaths on record, but {seen.deaths} processes died"
    for key, graves in facts.dead.items():
        for grave in graves:
            if grave.reason == "crash loop" and grave.attempts < killed[key] - seen.forgotten:
                yield f"I6: {name(key)} died of {killed[key]} crashes, its grave says {grave.attempts}"


def _order_is_kept(seen: Seen, tables: Tables) -> Iterable[str]:
    if not seen.ordered:
        return
    # What is there twice has the place of the first.
    place = {sent.key: -at for at, sent in enumerate(reversed(seen.sent))}
    line = {sent.key: sent.order_key for sent in seen.sent}
    last: dict[str, Key] = {}
    for key in tables.effects:
        order_key = line.get(key)
        if order_key is None:
            continue
        before = last.get(order_key)
        if before is not None and place[before] > place[key]:
            yield f"I7: key {order_key!r}: {name(key)} took effect after {name(before)}, which was sent later"
        last[order_key] = key


def _nothing_unfinished_is_deleted(seen: Seen, facts: _Facts) -> Iterable[str]:
    payloads: dict[Key, set[bytes]] = defaultdict(set)
    for sent in seen.sent:
        payloads[sent.key].add(sent.payload)
    rows: list[Queued | Dead] = [row for rows in facts.queued.values() for row in rows]
    rows += [row for graves in facts.dead.values() for row in graves]
    for row in rows:
        if row.key in payloads and row.payload not in payloads[row.key]:
            yield f"I8: {name(row.key)} is kept, but not with the payload that was sent"


def _deliveries_are_answered(seen: Seen) -> Iterable[str]:
    if seen.deliveries is None or not seen.quiet:
        return
    figures = seen.deliveries
    answers = ("acked", "nacked", "released", "dropped", "timed_out")
    answered = sum(figures[word] for word in answers)
    if figures["delivered"] != answered or figures["in_flight"]:
        told = ", ".join(f"{figures[word]} {word}" for word in (*answers, "in_flight"))
        yield f"I9: {figures['delivered']} deliveries, but {told}"
