"""`oncebox purge`: counts, deletes, and refuses windows that would make duplicates."""

import sqlite3
from pathlib import Path

import pytest

from oncebox import App, Message
from tests.cli.kit import oncebox

SHOP = """
from oncebox import App
app = App("sqlite:///shop.db")
billing = app.consumer("billing", retention=864000.0)

@billing.handler()
def paid(payload: dict) -> None:
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An app with three old messages and a young one."""
    (tmp_path / "shop.py").write_text(SHOP)
    app = App(f"sqlite:///{tmp_path / 'shop.db'}")
    billing = app.consumer("billing")

    @billing.handler()
    def paid(payload: dict) -> None:  # type: ignore[type-arg]
        pass

    for number in range(4):
        billing.process_sync(Message(id=f"evt-{number}", payload={}))
    app.close()
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        month = 30 * 86_400 * 1_000_000
        connection.execute(
            "UPDATE oncebox_ledger SET received = received - ?, finished = finished - ? WHERE message_id <> 'evt-3'",
            (month, month),
        )
    return tmp_path


def rows(folder: Path) -> int:
    with sqlite3.connect(folder / "shop.db") as connection:
        count: int = connection.execute("SELECT count(*) FROM oncebox_ledger").fetchone()[0]
    return count


def test_a_dry_run_counts_and_deletes_nothing_and_the_real_one_does(folder: Path) -> None:
    would = oncebox("purge", "--dry-run", "--app", "shop:app", "--json", cwd=folder).json()
    assert would == {
        "applied": False,
        "counts": {"billing": 3},
        "windows": {"billing": 864000.0},
        "complete": True,
    }
    assert rows(folder) == 4
    done = oncebox("purge", "--app", "shop:app", cwd=folder)
    assert done.code == 0
    assert "billing" in done.out
    assert rows(folder) == 1


def test_a_window_can_be_named_without_an_app(folder: Path) -> None:
    words = (
        "purge",
        "--database",
        "sqlite:///shop.db",
        "--consumer",
        "billing",
        "--retention",
        "14d",
        "--json",
    )
    assert oncebox(*words, cwd=folder).json()["counts"] == {"billing": 3}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--database", "sqlite:///shop.db"), "name the app whose windows count"),
        (("--app", "shop:app", "--retention", "1d"), "--retention goes with --consumer"),
        (("--app", "shop:app", "--consumer", "billing", "--retention", "1d"), "is shorter than the window"),
        (("--app", "shop:app", "--consumer", "nobody"), "it has: billing"),
        (("--app", "shop:app", "--consumer", "billing", "--retention", "soon"), "90s, 15m, 6h, 2d"),
    ],
)
def test_what_can_not_be_is_refused_with_the_next_step(
    folder: Path, words: tuple[str, ...], text: str
) -> None:
    done = oncebox("purge", *words, cwd=folder)
    assert done.code == 2
    assert text in " ".join(done.err.split())
    assert rows(folder) == 4
