"""Forked processes, for what is killed here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.nursery import Nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """A warm process that forks others."""
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        yield nursery
