"""Bugs of our own, put in on purpose: the grid and its checker must catch each.

More are caught where they need a whole server or process: see the tests named `test_bug_…` in
`test_group_durability.py` and `test_vanished.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.cells import hasten
from tests.crash.grid import Bench
from tests.crash.nursery import Nursery
from tests.crash.planted import BUGS
from tests.crash.scenarios import BY_NAME, SWALLOWED

CAUGHT_BY_FAULTS = [
    ("ack before commit", "sqlite", "inline", "kill", "I2: "),
    ("ack before commit", "psycopg", "inline", "kill", "I2: "),
    ("claim in its own transaction", "sqlite", "inline", "kill", "I3: "),
    ("marker not written", "psycopg", "stored", "kill", "I6: "),
    ("unknown commit acked", "psycopg", "inline", "cut", "I2: "),
    ("cancellation acked", "asyncpg", "inline", "cancel", "I2: "),
]
CAUGHT_WITHOUT = [
    ("attempt not counted", "sqlite", "inline dead", "I5: its worker came to no end"),
    ("end of the transaction not checked", "psycopg", SWALLOWED.name, "I2: "),
]
CAUGHT_ELSEWHERE = {"no fencing token", "flush skipped", "flush vouches for nothing"}

MakeBench = Callable[[str], Bench]


@pytest.fixture
def make_bench(
    request: pytest.FixtureRequest, tmp_path: Path, nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> MakeBench:
    def make(variant: str) -> Bench:
        hasten(monkeypatch.setattr)
        url = request.getfixturevalue("sqlite_url" if variant.startswith("sqlite") else "pg_url")
        bench = Bench(url, variant, tmp_path, nursery)
        request.addfinalizer(bench.close)
        return bench

    return make


@pytest.mark.parametrize(("bug", "variant", "scenario", "what", "words"), CAUGHT_BY_FAULTS)
def test_bug_shows_at_some_step(
    make_bench: MakeBench, bug: str, variant: str, scenario: str, what: str, words: str
) -> None:
    bench = make_bench(variant)
    kinds = bench.trace(BY_NAME[scenario])
    for fault in bench.faults(kinds, what):
        if any(words in found for found in bench.break_at(BY_NAME[scenario], fault, bug)):
            return
    raise AssertionError(f"nobody noticed: {bug}")


@pytest.mark.parametrize(("bug", "variant", "scenario", "words"), CAUGHT_WITHOUT)
def test_bug_shows_by_itself(
    make_bench: MakeBench, bug: str, variant: str, scenario: str, words: str
) -> None:
    bench = make_bench(variant)
    bench.trace(BY_NAME[scenario])
    found = bench.break_at(BY_NAME[scenario], None, bug)
    assert any(words in text for text in found), found


def test_every_planted_bug_is_looked_for() -> None:
    looked_for = {case[0] for case in (*CAUGHT_BY_FAULTS, *CAUGHT_WITHOUT)} | CAUGHT_ELSEWHERE
    assert looked_for == BUGS.keys()
    assert len(BUGS) >= 6
