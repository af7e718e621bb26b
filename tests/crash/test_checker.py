"""The checker itself: each invariant is seen broken, in words, and a good history passes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.crash.checker import Attempt, Dead, Ledger, Queued, Seen, Sent, Start, Tables, violations

A = ("billing", "s", "a")
B = ("billing", "s", "b")
FIGURES = {
    "delivered": 3,
    "acked": 2,
    "nacked": 1,
    "released": 0,
    "dropped": 0,
    "timed_out": 0,
    "in_flight": 0,
}
GOOD = (
    Seen(
        sent=[Sent(A, b"1", "done", "k"), Sent(B, b"2", "dead", "k")],
        acked=[A, B],
        starts=[Start(A), Start(B, 1, killed=True), Start(B, 2)],
        deliveries=FIGURES,
        deaths=1,
        ordered=True,
    ),
    Tables(
        effects=[A],
        ledger=[Ledger(A, b"f"), Ledger(B, b"g")],
        dead=[Dead(B, "crash loop", b"g", 2, b"2")],
        attempts=[Attempt(B, died=True)],
        outgoing=[A],
    ),
)


def test_good_history_has_no_violation() -> None:
    assert violations(*GOOD) == []


@pytest.mark.parametrize(
    ("seen", "tables", "words"),
    [
        ({}, {"effects": [A, A], "outgoing": [A, A]}, "I1: message 'a' of 's' for 'billing' took effect 2 times"),
        ({}, {"ledger": [Ledger(A), Ledger(A), Ledger(B)]}, "I1: message 'a' of 's' for 'billing' has 2 ledger rows"),
        ({}, {"ledger": [Ledger(A)]}, "I2: message 'b' of 's' for 'billing' was acked, and no ledger row says why"),
        ({}, {"ledger": [Ledger(A, state=1), Ledger(B)]}, "I2: message 'a' of 's' for 'billing' was acked while"),
        ({}, {"ledger": [Ledger(A, state=2), Ledger(B)]}, "took effect, but it is discarded"),
        ({}, {"effects": [], "outgoing": []}, "I3: message 'a' of 's' for 'billing' is done, but it had no effect"),
        ({}, {"queue": [Queued(("billing", "s", "c"), 1)]}, "is in the queue without a ledger row"),
        ({}, {"dead": [Dead(("billing", "s", "c"), "exhausted")]}, "is among the dead without a ledger row"),
        ({}, {"ledger": [Ledger(A, state=2), Ledger(B)], "dead": [Dead(A, "exhausted")]}, "discarded, and among the"),
        ({}, {"outgoing": []}, "I4: message 'a' of 's' for 'billing' has 1 effects and 0 outgoing rows"),
        ({}, {"queue": [Queued(A, 1, payload=b"1")]}, "I5: message 'a' of 's' for 'billing' was sent and is waiting"),
        ({"sent": [Sent(A, b"1", "dead")]}, {}, "I5: message 'a' of 's' for 'billing' should have ended dead"),
        ({"sent": [Sent(A, b"1", "conflict")]}, {}, "clashed with another payload, and is not among the dead"),
        ({"starts": [Start(B, 1, killed=True), Start(B)]}, {}, "I6: message 'b' of 's' for 'billing' was started as"),
        ({"deaths": 0}, {}, "I6: message 'b' of 's' for 'billing' has 1 deaths on record, but 0 processes died"),
        ({"starts": [Start(B, n, killed=True) for n in (1, 2, 3)]}, {}, "died of 3 crashes, its grave says 2"),
        ({}, {"effects": [B, A], "dead": [], "outgoing": [A, B]}, "I7: key 'k'"),
        ({}, {"dead": [Dead(B, "exhausted", b"g", 0, b"no")]}, "I8: message 'b' of 's' for 'billing' is kept, but"),
        ({"deliveries": FIGURES | {"acked": 1}}, {}, "I9: 3 deliveries, but 1 acked, 1 nacked"),
    ],
)  # fmt: skip
def test_broken_invariant_is_explained(seen: dict[str, Any], tables: dict[str, Any], words: str) -> None:
    found = violations(dataclasses.replace(GOOD[0], **seen), dataclasses.replace(GOOD[1], **tables))
    assert any(words in sentence for sentence in found), found


def test_conflict_beside_a_done_message_is_no_violation() -> None:
    seen = Seen(sent=[Sent(A, b"1", "done"), Sent(A, b"2", "conflict")], acked=[A, A])
    tables = Tables(effects=[A], ledger=[Ledger(A, b"f")], dead=[Dead(A, "conflict", b"g", 0, b"2")])
    assert violations(seen, tables) == []


def test_unsettled_history_is_held_to_less() -> None:
    seen = Seen(sent=[Sent(A), Sent(B)], quiet=False)
    assert violations(seen, Tables(ledger=[Ledger(A, seq=1)], queue=[Queued(A, 1)])) == []
