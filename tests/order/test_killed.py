"""A little of `python -m proof.order`: order under load, with workers that are killed; and that it can fail."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from proof.order import Load, by_key, by_sequence, judge, prove
from proof.order_worker import Spec
from tests.core.fixtures import on, stored
from tests.core.kit import Shop
from tests.crash.nursery import Nursery


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path) as nursery:
        yield nursery


@pytest.mark.parametrize(
    ("engine", "by", "messages", "kills"),
    [("postgresql", "key", 1500, 3), ("postgresql", "sequence", 600, 2), ("sqlite", "key", 600, 2)],
)
async def test_every_key_is_in_exact_order_whoever_is_killed(
    request: pytest.FixtureRequest, nursery: Nursery, engine: str, by: str, messages: int, kills: int
) -> None:
    url: str = request.getfixturevalue("sqlite_url" if engine == "sqlite" else "pg_url")
    chance = random.Random(f"{engine} {by}")
    load = by_key(messages, 200, 1.0, chance) if by == "key" else by_sequence(messages // 20, 20, chance)
    spec = Spec(url=url, by=by, workers=4, batch=10, failing=0.05)
    figures = await prove(url, load, spec, processes=2, kills=kills, chance=chance, nursery=nursery)
    assert figures.violations == []
    assert (figures.kills, figures.failed > 0) == (kills, True)
    assert len(load.missing) == (5 if by == "sequence" else 0)


@stored
@on("sqlite")
def test_what_is_out_of_order_doubled_or_left_out_is_noticed(shop: Shop) -> None:
    shop.rows("CREATE TABLE proof_line (n INTEGER PRIMARY KEY, key TEXT, version INTEGER, found INTEGER)")
    rows = [("a", 2, 0), ("a", 1, 2), ("b", 1, 0), ("b", 1, 1), ("c", 1, 0), ("d", 1, 0), ("d", 2, 0)]
    for row in rows:
        shop.rows("INSERT INTO proof_line (key, version, found) VALUES (?, ?, ?)", *row)
    wrong = judge(shop, Load([], {"a": 2, "b": 1, "c": 2, "d": 2, "e": 1}))
    assert {text.split(":")[0] for text in wrong} == {"a", "b", "c", "d", "e"}
