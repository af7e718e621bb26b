"""What takes a place of its own: a standby that is promoted under load, a disk that is full."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import msgspec

from proof.soak.places import LiteFile, OneServer, Pair, Place
from proof.soak.run import Plan, drive
from proof.soak.site import Site
from tests.crash.nursery import Nursery


class Played(msgspec.Struct, kw_only=True):
    """What came of an act."""

    name: str
    messages: int
    kills: int
    lost: int
    doubled: int
    window: int
    """Messages that were acked and are lost as documented: the standby had not heard of their commits."""
    seconds: float
    unheard: int
    """All commits that it had not heard of."""
    violations: list[str]


# The standby falls behind for a moment, then the primary is gone.
FAILOVER: Plan = ((0.4, "deaf"), (0.5, "failover"))
PLANS: dict[str, Plan] = {
    "synchronous standby": FAILOVER,
    "asynchronous standby": FAILOVER,
    "full disk": ((0.2, "full"), (0.5, "full"), (0.8, "full")),
    "no connection left": ((0.2, "crowd"), (0.5, "database"), (0.6, "crowd")),
}
ACTS = ("synchronous standby", "asynchronous standby", "full disk")
"""Those that `make soak` plays: the last one happens in its first part, too."""


def _place(name: str, folder: Path) -> Place:
    if name == "full disk":
        return LiteFile(folder)
    if name == "no connection left":
        return OneServer()
    return Pair(synchronous=name == "synchronous standby")


def play(name: str, nursery: Nursery, seed: int, seconds: float, messages: int, kills: int) -> Played:
    """One of them, on servers of its own."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        place = _place(name, Path(folder))
        try:
            site = Site(Path(folder), nursery, random.Random(f"{seed} {name}"), place)
        except BaseException:
            place.close()
            raise
        try:
            found = drive(site, seconds, messages, kills, PLANS[name])
            if name == "asynchronous standby" and isinstance(place, Pair):
                site.lost = place.unheard()
            found += site.violations()
        finally:
            site.close()
    counts = site.counts
    return Played(
        name=name, messages=len(site.sent), kills=counts["kills"], lost=counts["lost"], doubled=counts["doubled"],
        window=counts["window"], unheard=len(site.lost), seconds=round(time.monotonic() - began, 1),
        violations=[f"{name}: {text}" for text in found[:20]],
    )  # fmt: skip
