"""What a proof says: a figure for each thing that was tried, or the story of what went wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from oncebox.core.outcomes import Outcome
from oncebox.testing.compare import Difference
from oncebox.testing.outside import Sighting

FaultName = Literal[
    "failed",
    "outside",
    "own commit",
    "memory",
    "duplicate",
    "replay",
    "crash",
    "rerun",
    "concurrent",
    "order",
]


class NotOnce(AssertionError):
    """The handler has not one effect whatever happens. `fault` names the kind of mistake:

    `failed` (it does not even work when all is well), `outside` (it acts where no rollback reaches),
    `own commit` (it ends its transaction, or commits elsewhere), `memory` (rows depend on what the
    process remembers), `duplicate`, `replay`, `crash`, `rerun`, `concurrent`, `order` (the rows are wrong after it).
    """

    def __init__(self, fault: FaultName, text: str) -> None:
        super().__init__(text)
        self.fault = fault


class Proof(msgspec.Struct, kw_only=True):
    """What was tried without finding a fault. The database is as one clean delivery left it."""

    outcomes: list[Outcome] = []
    """How each message ended."""
    steps: list[str] = []
    """The steps of a clean delivery, in words."""
    replayed: int = 0
    """Messages that were replayed, where the policy word `replay` allows it."""
    crash_points: int = 0
    """Deaths before every step and after the last, and at every line of the handler's."""
    lines: int = 0
    """How many of them were lines of the user's."""
    reruns: int = 0
    duplicates: int = 0
    concurrent: int = 0
    orders: int = 0
    changed: tuple[str, ...] = ()
    """Tables of the user's in which a clean delivery changed something."""
    remembered: list[str] = []
    """Variables that a clean delivery changed. No fault by itself, but a rollback does not reach them."""
    noisy: dict[str, str] = {}
    """Columns that differ between two clean deliveries, and why they may."""

    def __str__(self) -> str:
        return (
            f"{self.crash_points} crash points ({self.lines} of them lines of the handler), {self.reruns} reruns, "
            f"{self.duplicates} duplicates, {self.concurrent} deliveries at once, {self.orders} orders: one effect"
        )


ADVICE: dict[FaultName, str] = {
    "failed": "A proof needs a delivery that works; if the message is meant to end otherwise: status='dead'.",
    "outside": (
        "A rollback does not take that back, and the message may come again. Write it down in the transaction "
        "(tx.send, tx.publish, a table) and do it in an effect (@consumer.effect); if it is harmless, name it: "
        "allow=('{to}',)."
    ),
    "own commit": (
        "Use the connection or session that the handler is given, and leave its end to oncebox: effects and claim "
        "must be committed together."
    ),
    "memory": (
        "Something other than message and database decides what is written: a counter, a cache, a set of seen "
        "ids. It is not rolled back with the transaction, and another process does not have it. Keep it in a "
        "table; if a column may differ (a dice, a host name), name it: ignore=('{column}',)."
    ),
    "duplicate": "A delivery that was handled before must change nothing.",
    "replay": (
        'A replay leaves out what goes through tx.send, tx.publish and effects under replay="suppress_effects"; under '
        '"rebuild" it must be able to write everything again: empty what it writes in @consumer.reset, or forbid it.'
    ),
    "crash": "After a crash the message comes again, and the rows must be those of a single clean delivery.",
    "rerun": (
        "After a deadlock the handler is run again in the same process, and the rows must be those of a single "
        "clean delivery: nothing in memory may remember the first try."
    ),
    "concurrent": "Deliveries at the same moment must have the rows of a single clean delivery.",
    "order": "In another order the rows are different; if that is meant, do not ask for any_order.",
}


def tell(fault: FaultName, who: str, what: str, details: Iterable[str], **words: str) -> NotOnce:
    """A story: who, what happened, the details one by one, and what to do."""
    lines = [f"{who}: {what}", "", *(f"  {detail}" for detail in details)]
    advice = ADVICE[fault]
    for word, value in words.items():
        advice = advice.replace("{" + word + "}", value)
    return NotOnce(fault, "\n".join([*lines, "", advice]))


def rows(differences: Sequence[Difference]) -> list[str]:
    """Differences, row by row."""
    return [line for difference in differences for line in difference.told()]


def sightings(seen: Sequence[Sighting]) -> list[str]:
    """What left the process, once for each place it went to, by what tells most of it."""
    places: dict[str, Sighting] = {}
    for sighting in sorted(seen, key=lambda sighting: _TELLING.get(sighting.what, 0)):
        places.setdefault(sighting.to, sighting)
    return [
        f"it {found.what} {to}" + (f" ({found.line})" if found.line else "") for to, found in places.items()
    ]


_TELLING = {"connects to": 1, "sends to": 2}
"""A connection says less than the mail that is sent through it."""
