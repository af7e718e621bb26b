"""The flows that are broken at every step: what is delivered, what its handler does, how it must end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from oncebox import Backoff, Message

LARGE = 1000
"""The consumer's limit on payloads, in bytes."""


@dataclass(frozen=True)
class Scenario:
    """One flow, small enough that every step of it can be broken.

    A delivery is written `id`, `id!` with another payload, `id+` with one over the limit, `id*` when
    the broker delivers it for the second time, `id?` with a type that nobody handles.
    """

    name: str
    runs: str
    """The part that is at work: `inline`, `receive`, `stored`, `reap inline`, `reap stored`, `unknown`,
    `relay inline`, or what is decided."""
    deliver: tuple[str, ...]
    policy: dict[str, Any] = field(default_factory=dict)
    behaviour: dict[str, Any] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    """Delivered in full before the steps are counted."""
    claims: tuple[str, ...] = ()
    """Left unfinished by the guard before the steps are counted, and delivered once more when they are over."""
    deaths: int = 0
    """Processes that had the messages in hand and died before the steps are counted."""
    long: bool = False
    endings: dict[str, str | None] = field(default_factory=dict)
    """How messages end that are not simply done; None where that depends on the fault."""
    marked: bool = False
    """Duplicates are told by watermark: an id's letter is its place in the partition."""
    sends: str = ""
    """What handlers do besides their effect: `publish`, `send`. `retry` and `park`: they are no
    transaction's but calls to the outside, and that is done about a call which may have happened."""

    @property
    def mode(self) -> str:
        return "inline" if "inline" in self.runs else "stored"

    @property
    def order_by(self) -> str:
        """`key`, `sequence`, or nothing."""
        return str(self.policy.get("order_by", ""))


class Delivery(msgspec.Struct):
    """One message on its way, as a broker knows it."""

    number: int
    spec: str
    deliveries: int = 1

    @property
    def id(self) -> str:
        return self.spec[0]

    def message(self, long: bool) -> Message:
        """What the consumer gets."""
        kind = "nobody" if "?" in self.spec else "long" if long else "t"
        payload = b'{"other": 1}' if "!" in self.spec else b"0" * (LARGE + 1) if "+" in self.spec else b"{}"
        redelivered = self.deliveries + ("*" in self.spec)
        return Message(id=self.id, type=kind, source="s", payload=payload, deliveries=redelivered)


def one_lane(message: Message) -> str:
    """All of them are of one key."""
    return "k"


def by_alphabet(message: Message) -> int:
    """`a` is version 1."""
    return ord(message.id[0]) - ord("a") + 1


BY_KEY: dict[str, Any] = {"order_by": "key", "key": one_lane}
ONE_TRY: dict[str, Any] = {"retry": Backoff(attempts=1)}
TWO_TRIES: dict[str, Any] = {"retry": Backoff(attempts=2, base_seconds=0)}
BY_SEQUENCE = {"order_by": "sequence", "key": one_lane, "sequence": by_alphabet, "sequence_start": 1}

SCENARIOS = (
    Scenario("inline", "inline", ("a", "b", "a")),
    Scenario("inline duplicates", "inline", ("a", "b", "c"), before=("a", "b")),
    Scenario("inline redelivered", "inline", ("a*", "b*")),
    Scenario("inline batch", "inline", ("a", "b", "a", "c"), {"batch": 4}, before=("c",)),
    Scenario("inline batches in a row", "inline", ("a", "b", "c", "d", "e"), {"batch": 2}),
    Scenario("inline batch with a failure", "inline", ("a", "b", "c"), {"batch": 3}, {"b": 1}),
    Scenario("inline group", "inline", ("a", "b", "a"), {"durability": "group"}),
    Scenario("inline group, known lazy row", "inline", ("a",), {"durability": "group"}, before=("a",)),
    Scenario("inline retry", "inline", ("a", "b"), behaviour={"a": 1}),
    Scenario(
        "inline dead", "inline", ("a",), {"retry": Backoff(attempts=2, base_seconds=0)}, {"a": "forever"},
        endings={"a": "dead"},
    ),
    Scenario("inline discard", "inline", ("a",), behaviour={"a": "discard"}, endings={"a": "discarded"}),
    Scenario("inline conflict", "inline", ("a!",), before=("a",), endings={"a!": "conflict"}),
    Scenario("inline batch conflict", "inline", ("a!", "b"), {"batch": 2}, before=("a",), endings={"a!": "conflict"}),
    Scenario("inline unknown type", "inline", ("a?",), endings={"a?": "dead"}),
    Scenario("inline crash loop", "inline", ("a*",), {"crash_limit": 1}, deaths=1, endings={"a*": "dead"}),
    Scenario("receive", "receive", ("a", "b", "a"), before=("b",)),
    Scenario("receive conflict", "receive", ("a!", "b"), before=("a",), endings={"a!": "conflict"}),
    Scenario("receive too large", "receive", ("a+", "b"), endings={"a+": "dead"}),
    Scenario("stored", "stored", ("a", "b")),
    Scenario("stored batch", "stored", ("a", "b", "c"), {"batch": 3}),
    Scenario("stored batches in a row", "stored", ("a", "b", "c", "d", "e"), {"batch": 2}),
    Scenario("stored batch with a failure", "stored", ("a", "b", "c"), {"batch": 3}, {"b": 1}),
    Scenario("stored retry", "stored", ("a",), behaviour={"a": 1}),
    Scenario(
        "stored dead", "stored", ("a",), {"retry": Backoff(attempts=2, base_seconds=0)}, {"a": "forever"},
        endings={"a": "dead"},
    ),
    Scenario("stored discard", "stored", ("a",), behaviour={"a": "discard"}, endings={"a": "discarded"}),
    Scenario("stored suspect", "stored", ("a",), deaths=1),
    Scenario("stored crash loop", "stored", ("a",), {"crash_limit": 1}, deaths=1, endings={"a": "dead"}),
    Scenario("lease", "stored", ("a",), long=True),
    Scenario("lease retry", "stored", ("a",), behaviour={"a": 1}, long=True),
    Scenario(
        "lease dead", "stored", ("a",), {"retry": Backoff(attempts=1)}, {"a": "forever"}, long=True,
        endings={"a": "dead"},
    ),
    Scenario("receive in order", "receive", ("a", "b", "a"), BY_KEY),
    Scenario("receive by sequence", "receive", ("b", "a"), BY_SEQUENCE),
    Scenario("stored in order", "stored", ("a", "b"), BY_KEY, {"a": 1}),
    Scenario(
        "stored in order, past a dead head", "stored", ("a", "b"),
        {**BY_KEY, "on_dead": "skip", "retry": Backoff(attempts=2, base_seconds=0)}, {"a": "forever"},
        endings={"a": "dead"},
    ),
    Scenario("stored by sequence", "stored", ("b", "a"), BY_SEQUENCE),
    Scenario("lease in order", "stored", ("a", "b"), BY_KEY, long=True),
    Scenario("inline in order", "inline", ("a", "b", "a"), BY_KEY, {"a": 1}),
    Scenario("inline by sequence", "inline", ("b", "a"), BY_SEQUENCE),
    Scenario("partition", "inline", ("a", "b", "c"), before=("a",), marked=True),
    Scenario("partition redelivered", "inline", ("a*", "b*"), marked=True),
    Scenario("partition batch", "inline", ("a", "b", "c"), {"batch": 3}, before=("a",), marked=True),
    Scenario("partition batch with a failure", "inline", ("a", "b", "c"), {"batch": 3}, {"b": 1}, marked=True),
    Scenario("partition retry", "inline", ("a", "b"), behaviour={"a": 1}, marked=True),
    Scenario("partition dead", "inline", ("a",), ONE_TRY, {"a": "forever"}, endings={"a": "dead"}, marked=True),
    Scenario("partition unknown type", "inline", ("a?", "b"), endings={"a?": "dead"}, marked=True),
    Scenario(
        "partition crash loop", "inline", ("a*", "b"), {"crash_limit": 1}, deaths=1, endings={"a*": "dead"},
        marked=True,
    ),
    Scenario("gap, skipped", "gap", ("b", "c"), {**BY_SEQUENCE, "gap_seconds": 1e-7, "on_gap": "skip"}),
    Scenario(
        "gap, parked", "gap", ("b", "c"), {**BY_SEQUENCE, "gap_seconds": 1e-7, "on_gap": "park"},
        endings={"b": "dead", "c": "dead"},
    ),
    Scenario("reap inline", "reap inline", ("a*",), deaths=1),
    Scenario("reap stored", "reap stored", ("a", "b"), deaths=1),
    Scenario("publish", "inline", ("a", "b"), {"batch": 2}, sends="publish"),
    Scenario("relay", "relay inline", (), before=("a", "b"), sends="publish"),
    Scenario("send", "stored", ("a",), sends="send"),
    Scenario("call", "stored", ("a",), sends="retry"),
    Scenario("call, parked", "stored", ("a",), sends="park", endings={"a": None}),
    Scenario("settle: it happened", "settle: it happened", (), ONE_TRY, before=("a",), sends="park"),
    Scenario("settle: it did not", "settle: it did not", (), ONE_TRY, before=("a",), sends="park"),
    Scenario("redrive", "redrive", (), ONE_TRY, {"a": "once"}, before=("a",)),
    Scenario("discard", "discard", (), ONE_TRY, {"a": "once"}, before=("a",), endings={"a": "discarded"}),
    Scenario("redrive claims", "redrive claims", (), claims=("a", "b")),
    Scenario(
        "discard claims", "discard claims", (), claims=("a", "b"), endings={"a": "discarded", "b": "discarded"}
    ),
    Scenario("resolve", "resolve", (), before=("a", "a!"), endings={"a!": None}),
    Scenario(
        "purge", "purge", ("d",), TWO_TRIES, {"c": "forever"}, before=("a", "b", "c"),
        endings={"a": "purged", "c": "dead"},
    ),
    Scenario(
        "purge, archived", "purge, archived", ("d",), TWO_TRIES, {"c": "forever"}, before=("a", "b", "c"),
        endings={"a": "purged", "c": "dead"},
    ),
    Scenario("replay", "replay", (), {"keep_payload": "always", "replay": "rebuild"}, before=("a", "b")),
    Scenario("bury unknown types", "unknown", ("a?",), {"unknown_type_seconds": 0.0}, endings={"a?": "dead"}),
)  # fmt: skip

SWALLOWED = Scenario(
    "inline swallowed error",
    "inline",
    ("a",),
    {"retry": Backoff(attempts=1)},
    {"a": "swallow"},
    endings={"a": "dead"},
)
"""The handler hides a database error; on PostgreSQL nothing of it can be committed any more."""

BY_NAME = {scenario.name: scenario for scenario in (*SCENARIOS, SWALLOWED)}
