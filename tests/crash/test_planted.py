"""Bugs of our own, put in on purpose: the grid and its checker must catch each.

More are caught where they need a whole server or process: see the tests named `test_bug_…` in
`test_group_durability.py` and `test_vanished.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.catchers import CATCHERS, CAUGHT_ELSEWHERE, Catcher
from tests.crash.cells import hasten
from tests.crash.grid import Bench
from tests.crash.nursery import Nursery
from tests.crash.planted import BUGS

HERE = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "catcher", CATCHERS, ids=lambda catcher: f"{catcher.bug}-{catcher.variant}".replace(" ", "_")
)
def test_bug_shows_at_some_step(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    nursery: Nursery,
    monkeypatch: pytest.MonkeyPatch,
    catcher: Catcher,
) -> None:
    hasten(monkeypatch.setattr)
    url = request.getfixturevalue("sqlite_url" if catcher.variant.startswith("sqlite") else "recycled_pg_url")
    bench = Bench(url, catcher.variant, tmp_path, nursery)
    try:
        assert bench.catches(catcher), f"nobody noticed: {catcher.bug}"
    finally:
        bench.close()


def test_every_planted_bug_is_looked_for() -> None:
    assert {catcher.bug for catcher in CATCHERS} | CAUGHT_ELSEWHERE.keys() == BUGS.keys()
    assert len(BUGS) >= 12
    for node in CAUGHT_ELSEWHERE.values():
        file, _, name = node.partition("::")
        assert f"def {name}(" in (HERE / file).read_text()
