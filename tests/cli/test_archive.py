"""`oncebox archive`: what is there, whether it is whole, and back into the ledger."""

import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli.kit import oncebox
from tests.cli.test_purge import SHOP, folder, rows

__all__ = ["folder"]

ARCHIVED = SHOP.replace("retention=864000.0", 'retention=864000.0, archive="archive"')


@pytest.fixture
def archive(folder: Path) -> Path:
    """Three messages are archived, one is known."""
    (folder / "shop.py").write_text(ARCHIVED)
    oncebox("purge", "--app", "shop:app", "--json", cwd=folder).json()
    assert rows(folder) == 1
    return folder


def test_purge_archives_what_it_deletes_and_list_shows_it(archive: Path) -> None:
    found = oncebox("archive", "list", "--app", "shop:app", "--verify", "--json", cwd=archive).json()
    [day] = found["days"]
    assert (day["consumer"], day["rows"], day["parts"], day["at"]) == ("billing", 3, 1, "archive")
    assert found["verified"] is True
    shown = oncebox("archive", "list", "--at", "archive", cwd=archive)
    assert day["day"] in shown.out
    assert "Nothing" in oncebox("archive", "list", "--at", "archive", "--consumer", "x", cwd=archive).out
    mistyped = oncebox("archive", "list", "--at", "acrhive", cwd=archive)
    assert (mistyped.code, mistyped.err) == (2, "oncebox: --at acrhive: there is no such folder\n")


def test_a_part_that_was_changed_is_named(archive: Path) -> None:
    [part] = (archive / "archive").rglob("*.parquet")
    part.write_bytes(part.read_bytes()[:-30])
    done = oncebox("archive", "list", "--at", "archive", "--verify", cwd=archive)
    assert done.code == 1
    assert part.name in done.err


def test_restore_says_how_many_puts_them_back_once_and_leaves_an_audit(archive: Path) -> None:
    words = ("archive", "restore", "--app", "shop:app", "--consumer", "billing", "--json")
    would = oncebox(*words, "--dry-run", cwd=archive).json()
    assert (would["applied"], would["found"], would["restored"], rows(archive)) == (False, 3, 3, 1)
    one = oncebox(*words, "evt-1", "--reason", "late", "--by", "me", cwd=archive).json()
    assert (one["applied"], one["found"], one["restored"], rows(archive)) == (True, 1, 1, 2)
    rest = oncebox(*words, "--reason", "late", "--by", "me", cwd=archive).json()
    assert (rest["found"], rest["restored"], rows(archive)) == (3, 2, 4)
    with sqlite3.connect(archive / "shop.db") as connection:
        found = connection.execute(
            "SELECT verb, who, reason, filter, message_id FROM oncebox_audit"
        ).fetchall()
    assert [(verb, who, why, id_) for verb, who, why, _, id_ in found] == [
        ("archive restore", "me", "late", f"evt-{n}") for n in (1, 0, 2)
    ]
    assert json.loads(found[0][3])["ids"] == ["evt-1"]
    assert oncebox("purge", "--app", "shop:app", "--dry-run", "--json", cwd=archive).json()["counts"] == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("restore", "--at", "archive"), "--consumer"),
        (("restore", "--app", "shop:app", "--consumer", "billing"), "--reason"),
        (("restore", "--app", "shop:app", "--consumer", "no", "--reason", "x"), "no archive"),
        (("list",), "--at"),
        (("list", "--at", "ftp://x/y"), "ftp://"),
        (("list", "--at", "archive", "--since", "yesterday"), "--since"),
    ],
)
def test_what_is_missing_is_asked_for(archive: Path, words: tuple[str, ...], said: str) -> None:
    done = oncebox("archive", *words, cwd=archive)
    assert (done.code, said in done.err) == (2, True)


def test_an_archive_that_fails_keeps_the_rows_and_fails_the_command(folder: Path) -> None:
    (folder / "shop.py").write_text(ARCHIVED)
    (folder / "archive").mkdir()
    (folder / "archive" / "consumer=billing").touch()
    done = oncebox("purge", "--app", "shop:app", cwd=folder)
    assert (done.code, rows(folder)) == (1, 4)
    assert "not deleted" in done.err
    told = oncebox("purge", "--app", "shop:app", "--json", cwd=folder)
    assert told.code == 1
    assert "billing" in json.loads(told.out)["failed"]


def test_without_an_app_the_archive_can_be_named(folder: Path) -> None:
    words = ("purge", "--database", "sqlite:///shop.db", "--json")
    one = ("--consumer", "billing", "--retention", "10d")
    done = oncebox(*words, *one, "--archive", "elsewhere", cwd=folder).json()
    assert (done["counts"], done["archived"]) == ({"billing": 3}, {"billing": 3})
    assert len(list((folder / "elsewhere").rglob("*.parquet"))) == 1
