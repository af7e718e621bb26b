"""Which values may differ between two right runs, and which may not."""

import time
from collections import Counter

import pytest

from oncebox.testing.compare import Comparison
from oncebox.testing.noise import explained, natural, plain
from oncebox.testing.tables.state import SHIFT, State, Table


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2026-11-16 02:57:59.123+00", "2026-11-16 02:58:00+00"),
        ("2026-11-16T02:57:59Z", "2026-11-16T02:58:01Z"),
        ("0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7"),
        ("6fa459ea", "1b9d6bcd"),
        ("q1W_e2-R3tz", "aS4_d5-F6gh"),
        ('{"at":"2026-11-16T02:57:59Z","id":"8f3a99c1d2"}', '{"at":"2026-11-16T02:58:11Z","id":"11d04be7aa"}'),
        ("0.123456789", "0.123999111"),
        ("7301937284719283746", "7301937284752938471"),
    ],
)  # fmt: skip
def test_times_and_random_ids_are_explained(first: str, second: str) -> None:
    assert explained(first, second)


def test_numbers_that_tell_the_time_are_explained() -> None:
    now = time.time()
    assert explained(f"{now:.0f}", f"{now + 1:.0f}")
    assert explained(f"{now * 1000:.0f}", f"{now * 1000 + 7:.0f}")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1", "2"),
        ("true", "false"),
        ("100.5", "201.0"),
        ("INV-00000001", "INV-00000002"),
        ("invoice0000000041", "invoice0000000042"),
        ("[1]", "[1, 1]"),
        ("new", "known"),
        ("10000000001", "10000000002"),
        ('{"at":"2026-11-16T02:57:59Z","n":1}', '{"at":"2026-11-16T02:58:11Z","n":2}'),
        ("a", None),
    ],
)
def test_what_looks_like_a_memory_is_not(first: str | None, second: str | None) -> None:
    assert not explained(first, second)
    assert not explained(second, first)


def test_sequences_are_told_by_their_jump() -> None:
    assert explained(
        '{"invoice":7,"number":"INV-7"}',
        f'{{"invoice":{7 + SHIFT},"number":"INV-{7 + SHIFT}"}}',
        sequences=True,
    )
    assert not explained("7", "8", sequences=True)


def test_plain_values_keep_what_must_not_differ() -> None:
    assert plain('{"at":"2026-11-16T02:57:59Z","balance":900}') == '{"at":"<time>","balance":900}'
    assert plain(None) is None
    assert sorted(["10", "9", "INV-10", "INV-9"], key=natural) == ["9", "10", "INV-9", "INV-10"]


def _state(*rows: tuple[str | None, ...], key: tuple[str, ...] = ("id",)) -> State:
    return {"t": Table(("id", "n", "at"), key, Counter(rows))}


def test_noise_of_one_column_hides_no_other() -> None:
    comparison = Comparison()
    clean = _state(("a", "1", "02:57:59"))
    assert comparison.differences(clean, _state(("a", "1", "02:58:00"))) == []
    assert comparison.noisy == {"t.at": "a time or a random id"}
    (found,) = comparison.differences(clean, _state(("a", "2", "02:59:00")))
    assert found.told() == ["t, id='a': n is '2' instead of '1'"]
    (found,) = comparison.differences(clean, _state(("a", "1", "03:00:00"), ("b", "1", "03:00:00")))
    assert found.told() == ["t: too much (id='b', n='1', at='03:00:00')"]


def test_second_row_of_the_same_is_too_much() -> None:
    row = ("a", "1", None)
    (found,) = Comparison().differences(_state(row), _state(row, row))
    assert found.told() == ["t: too much (id='a', n='1', at=NULL)"]
    assert Comparison().differences({}, {}) == []


def test_tables_and_columns_can_be_left_out() -> None:
    clean, other = _state(("a", "1", None)), _state(("a", "2", None))
    assert Comparison(["t.n"]).differences(clean, other) == []
    assert Comparison(["t"]).differences(clean, _state()) == []
    assert Comparison(["t.n"]).differences(clean, _state(("b", "2", None))) != []
