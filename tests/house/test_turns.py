"""The order in which workers take tests loses none of them, and tears no group apart."""

import itertools

import pytest

from tests.turns import group_of, in_turn


def _item(request: pytest.FixtureRequest, folder: str, name: str, group: str | None) -> pytest.Item:
    item = pytest.Function.from_parent(request.node.parent, name=name, callobj=lambda: None)
    item.path = request.path.parent.with_name(folder) / "test_it.py"
    if group is not None:
        item.add_marker(pytest.mark.xdist_group(group))
    return item


def test_every_test_has_one_turn_and_groups_stay_together(request: pytest.FixtureRequest) -> None:
    items = [
        _item(request, folder, f"test_{number}", group)
        for number in range(300)
        for folder, group in (
            ("unit", None), ("crash", None), ("brokers", "small" if number < 5 else "large"), ("webhooks", None)
        )
    ]  # fmt: skip
    turns = in_turn(items)
    assert sorted(map(id, turns)) == sorted(map(id, items))
    runs = [name for name, _ in itertools.groupby(turns, group_of)]
    assert runs == ["large", None, "small", None]
    alone = [item.path.parent.name for item in turns if group_of(item) is None]
    assert [folder for folder, _ in itertools.groupby(alone)] == ["crash", "webhooks", "unit"]
