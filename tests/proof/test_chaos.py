"""A little of what `make soak` does: servers that fail over, fill up and have no connection left, under load."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from proof.soak.acts import PLANS, play
from proof.soak.places import LiteFile
from proof.soak.run import settle
from proof.soak.site import Site
from tests.crash.nursery import Nursery


@pytest.mark.parametrize("name", PLANS)
def test_nothing_is_lost_or_doubled_but_what_a_standby_had_not_heard_of(name: str, nursery: Nursery) -> None:
    played = play(name, nursery, seed=1, seconds=3.0, messages=200, kills=1)
    assert played.violations == []
    assert (played.lost, played.doubled) == (0, 0)
    if name == "asynchronous standby":
        assert played.unheard, "the standby had heard of everything: nothing was shown"
    else:
        assert played.window == 0


def test_what_is_stuck_is_told_with_where_everything_stands(tmp_path: Path, nursery: Nursery) -> None:
    site = Site(tmp_path, nursery, random.Random(1), LiteFile(tmp_path))
    try:
        site.send(3)
        site.tend = lambda: None  # type: ignore[method-assign] # nobody comes to work
        (told,) = settle(site, stuck_seconds=0.3, dump=tmp_path / "stuck.txt")
    finally:
        site.close()
    assert told.startswith("stuck: (0, 0, 3")
    dump = (tmp_path / "stuck.txt").read_text()
    assert all(part in dump for part in ("broker: ", "-- queue", "-- workers", "-- hands"))
