"""SQL files: a missing, extra or repeated query fails when they are loaded, and says which."""

import re
from importlib import resources
from pathlib import Path

import pytest

from oncebox.core.queries import Query
from oncebox.engines.migrations import DIALECTS, versions
from oncebox.engines.queries import check_schema_name, columns, load, prefix
from oncebox.errors import ConfigError

FOLDER = Path(str(resources.files("oncebox.engines"))) / "sql"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The SQL files of PostgreSQL, to be spoilt."""
    for file in (FOLDER / "postgresql").iterdir():
        target = tmp_path / "sql" / "postgresql" / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text())
    monkeypatch.setattr("oncebox.engines.queries.resources.files", lambda package: tmp_path)
    return tmp_path / "sql" / "postgresql"


def test_an_untouched_copy_loads(copy: Path) -> None:
    assert load.__wrapped__("postgresql").claim.name == "claim"


def test_a_missing_query_is_named(copy: Path) -> None:
    file = copy / "take.sql"
    file.write_text(file.read_text().replace("-- name: take_suspect\n", "-- take_suspect\n"))
    with pytest.raises(RuntimeError, match=r"missing.*take_suspect"):
        load.__wrapped__("postgresql")


def test_an_unknown_query_is_named(copy: Path) -> None:
    (copy / "extra.sql").write_text("-- name: surprise\nSELECT 1\n")
    with pytest.raises(RuntimeError, match=r"unknown.*surprise"):
        load.__wrapped__("postgresql")


def test_a_repeated_query_is_named(copy: Path) -> None:
    (copy / "again.sql").write_text("-- name: claim\nSELECT 1\n")
    with pytest.raises(RuntimeError, match="claim is defined twice"):
        load.__wrapped__("postgresql")


def test_both_dialects_ask_for_the_same_parameters() -> None:
    postgresql, sqlite = load("postgresql"), load("sqlite")
    # PostgreSQL spells a hundred rows as arrays, and sets its token along with the claim and the guard's mark.
    only_postgresql = {"token", "serial", "rows"}
    for name in postgresql.__slots__:
        one, other = getattr(postgresql, name), getattr(sqlite, name)
        if one is not None and other is not None and not other.each:
            assert set(other.names) <= set(one.names), name
            assert set(one.names) - set(other.names) <= only_postgresql | {"slots", "keep"}, name


def test_parameters_are_found_and_casts_are_not() -> None:
    query = Query("q", "SELECT :a::text, x::int, :b, :a, '100%' WHERE y = ANY(:list::bigint[])", False)
    assert query.order == ("a", "b", "a", "list")
    assert query.names == ("a", "b", "list")
    assert query.numbered == "SELECT $1::text, x::int, $2, $1, '100%' WHERE y = ANY($3::bigint[])"
    assert query.positional == "SELECT %s::text, x::int, %s, %s, '100%%' WHERE y = ANY(%s::bigint[])"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Shop",
        "1shop",
        "shop inbox",
        'shop"',
        "shop;",
        "shop'",
        "shöp",
        "s" * 42,
        "s" * 70,
        "a\n",
        "a.b",
        None,
        7,
    ],
)
def test_a_schema_name_that_could_be_read_otherwise_is_refused_and_shown(name: object) -> None:
    with pytest.raises(ConfigError, match="at most 41 characters") as refused:
        check_schema_name(name)  # type: ignore[arg-type]
    assert repr(name) in str(refused.value)


@pytest.mark.parametrize("name", ["oncebox", "_", "shop_inbox_2", "s" * 41, "select"])
def test_a_plain_schema_name_is_taken(name: str) -> None:
    assert prefix("postgresql", name) == f'"{name}".'
    assert prefix("sqlite", name) == f"{name}_"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_name_is_rendered_with_the_schema(dialect: str) -> None:
    other = load(dialect, "shop_inbox")
    for name in other.__slots__:
        query = getattr(other, name)
        if query is not None:
            # GUCs and the trigger's channel are named after the product, tables never are.
            assert not re.search(r'(FROM|INTO|UPDATE|JOIN) "?oncebox["_.]', query.text), name
            assert "{" not in query.text.replace("'{}'", ""), name


@pytest.mark.parametrize(
    "newer",
    [
        r"\bMERGE\b",
        r"NULLS NOT DISTINCT",
        r"\bany_value\b",
        r"JSON_TABLE",
        r"\bold\.",
        r"\buuidv7\b",
        r"xmltext",
    ],
)
def test_the_sql_asks_for_nothing_newer_than_postgresql_14(newer: str) -> None:
    for file in (FOLDER / "postgresql").glob("*.sql"):
        lines = [line for line in file.read_text().splitlines() if not line.startswith("--")]
        assert not re.search(newer, "\n".join(lines), re.IGNORECASE), file.name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_versions_are_numbered_without_a_gap(dialect: str) -> None:
    assert list(versions(dialect)) == list(range(1, len(versions(dialect)) + 1))


def test_an_unknown_dialect_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="postgresql, sqlite"):
        versions("mysql")


def test_a_column_without_values_is_sent_empty_and_one_with_gaps_is_not() -> None:
    rows = [{"id": "a", "key": None, "lane": None}, {"id": "b", "key": "k", "lane": None}]
    assert columns(rows) == {"id": ["a", "b"], "key": [None, "k"], "lane": []}
    assert columns([]) == {}
