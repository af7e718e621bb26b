"""Fixtures of the crash tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.harness import Harness
from tests.crash.nursery import Nursery


@pytest.fixture(scope="session")
def warm_nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """One for all tests of this xdist worker."""
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        yield nursery


@pytest.fixture
def nursery(warm_nursery: Nursery) -> Iterator[Nursery]:
    """Forks warm processes, none of which outlives its test: databases are used again, by others."""
    yield warm_nursery
    warm_nursery.clear()


@pytest.fixture
def harness(
    request: pytest.FixtureRequest, nursery: Nursery, tmp_path: Path
) -> Iterator[Callable[..., Harness]]:
    """Makes the test's world: `harness("psycopg", mode="stored")`, on a fresh database unless one is given."""
    made: list[Harness] = []

    def make(variant: str, url: str = "", **words: Any) -> Harness:
        if not url:
            url = request.getfixturevalue("sqlite_url" if variant.startswith("sqlite") else "recycled_pg_url")
        made.append(Harness(url, variant, tmp_path, nursery, **words))
        return made[-1]

    yield make
    for world in made:
        world.close()
