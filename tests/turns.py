"""In which order several workers take the tests, so that none of them waits for another at the end, and the
processors have something to do all the time."""

from collections.abc import Sequence

import pytest

LONG = (
    "older", "crash", "examples", "proof", "typing", "docs", "order", "demo", "metrics", "webhooks", "cli",
    "operate", "brokers", "ingest", "doctor", "archive", "testing", "runtime", "engines",
)  # fmt: skip
"""Folders with tests of many seconds, the longest first. All others are small change, for the end."""
_BETWEEN = 200


def group_of(item: pytest.Item) -> str | None:
    """The name of those tests that must share a worker, because they share a server."""
    mark = item.get_closest_marker("xdist_group")
    return None if mark is None else str(mark.args[0] if mark.args else mark.kwargs["name"])


def in_turn(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Groups mostly wait for their servers: one after the other, largest first, with tests that compute between
    them for the other workers. Side by side they would leave the processors idle."""
    groups: dict[str, list[pytest.Item]] = {}
    alone: list[pytest.Item] = []
    for item in items:
        name = group_of(item)
        (alone if name is None else groups.setdefault(name, [])).append(item)
    alone.sort(key=_rank)
    turns: list[pytest.Item] = []
    for number, group in enumerate(sorted(groups.values(), key=len, reverse=True)):
        turns += group
        turns += alone[number * _BETWEEN : (number + 1) * _BETWEEN]
    return turns + alone[len(groups) * _BETWEEN :]


def _rank(item: pytest.Item) -> int:
    folder = item.path.parent.name
    return LONG.index(folder) if folder in LONG else len(LONG)
