"""Words of policy for flows in order: one key, by arrival or by version."""

from __future__ import annotations

from typing import Any

from oncebox import Backoff, Message


def one_lane(message: Message) -> str:
    """All of them are of one key."""
    return "k"


def by_alphabet(message: Message) -> int:
    """`a` is version 1."""
    return ord(message.id[0]) - ord("a") + 1


PATIENT = Backoff(attempts=50, base_seconds=0)
"""No head dies, which would hold up its key for good."""
ORDERING: dict[str, dict[str, Any]] = {
    "": {},
    "key": {"order_by": "key", "key": one_lane, "retry": PATIENT},
    "sequence": {
        "order_by": "sequence", "key": one_lane, "sequence": by_alphabet, "sequence_start": 1, "retry": PATIENT,
        "gap_seconds": 60.0, "on_gap": "skip",
    },
}  # fmt: skip
