"""Where each planted bug must show."""

from __future__ import annotations

import msgspec


class Catcher(msgspec.Struct, frozen=True):
    """Where a bug must show: a flow on a driver, a kind of fault (or none), and the words it is found by."""

    bug: str
    variant: str
    scenario: str
    what: str
    words: str


CATCHERS = (
    Catcher("ack before commit", "sqlite", "inline", "kill", "I2: "),
    Catcher("ack before commit", "psycopg", "inline", "kill", "I2: "),
    Catcher("claim in its own transaction", "sqlite", "inline", "kill", "I3: "),
    Catcher("marker not written", "psycopg", "stored", "kill", "I6: "),
    Catcher("unknown commit acked", "psycopg", "inline", "cut", "I2: "),
    Catcher("cancellation acked", "asyncpg", "inline", "cancel", "I2: "),
    Catcher("attempt not counted", "sqlite", "inline dead", "", "I5: its worker came to no end"),
    Catcher("end of the transaction not checked", "psycopg", "inline swallowed error", "", "I2: "),
    Catcher("finished, but left in the queue", "sqlite", "stored", "", "I1: "),
    Catcher("call not noted before it is made", "sqlite", "call, parked", "kill", "was made again"),
    Catcher("answer of the claim ignored", "sqlite", "inline", "", "I1: "),
    Catcher("published outside the transaction", "psycopg", "publish", "kill", "I4: "),
    Catcher("confirmation not looked at", "sqlite", "relay", "error", "I4: "),
    Catcher("failure acked", "sqlite", "inline retry", "", "I2: "),
    Catcher("failed neighbour not undone", "sqlite", "inline batch with a failure", "", "I1: "),
)
CAUGHT_ELSEWHERE = {
    "no fencing token": "tests/crash/test_vanished.py::test_bug_without_a_fencing_token_both_effects_stand",
    "flush skipped": "tests/crash/test_group_durability.py::test_bug_acks_a_duplicate_of_an_unflushed_commit",
    "flush vouches for nothing": (
        "tests/crash/test_group_durability.py::test_bug_does_not_count_what_a_flush_vouches_for"
    ),
}
"""Bugs that need a whole server or process to show, and the tests that catch them."""
