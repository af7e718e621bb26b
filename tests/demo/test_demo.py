"""The demo at work: small runs, real kills, both databases."""

import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from oncebox.demo.place import Place
from tests.demo.runner import demo, demo_json

KEYS = {"deliveries", "kills", "messages", "effects", "lost", "doubled", "seconds"}


def tables(url: str) -> list[str]:
    """What the demo has left behind."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        return [file.name for file in path.parent.glob(path.name + "*")]
    import psycopg

    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'oncebox%'").fetchall()
    return [name for (name,) in rows]


def test_oncebox_loses_and_doubles_nothing_where_the_usual_handler_doubles(database_url: str) -> None:
    code, report = demo_json(
        "--messages", "200", "--duplicates", "20", "--kills", "5", "--seed", "7", "--database", database_url
    )  # fmt: skip
    assert code == 0
    assert report["seed"] == 7
    for side in ("unprotected", "oncebox"):
        assert report[side].keys() >= KEYS
        assert report[side]["kills"] == 5
        assert report[side]["messages"] == 200
        assert report[side]["deliveries"] >= 220
        assert report[side]["seconds"] > 0
    assert report["unprotected"]["doubled"] > 0
    assert report["unprotected"]["effects"] >= 220
    assert report["oncebox"]["lost"] == 0
    assert report["oncebox"]["doubled"] == 0
    assert report["oncebox"]["effects"] == 200
    assert tables(database_url) == []


def test_a_double_or_a_loss_by_oncebox_exits_1(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Place.count

    def broken(place: Place, side: str) -> Counter[str]:
        charges = honest(place, side)
        if side == "oncebox":
            charges["pay-3-1"] += 1
            del charges["pay-3-2"]
        return charges

    monkeypatch.setattr(Place, "count", broken)
    result = demo("--messages", "5", "--duplicates", "0", "--kills", "0", "--seed", "3")
    assert result.exit_code == 1
    assert "oncebox broke its promise: 1 lost, 1 doubled" in result.stdout
    assert "seed 3" in result.stdout


def test_a_table_and_a_sentence_end_the_demo_and_few_lines_tell_its_progress() -> None:
    result = demo("--messages", "20", "--duplicates", "5", "--kills", "1", "--seed", "2")
    assert result.exit_code == 0
    for row in ("deliveries", "kills", "payments", "ledger entries", "lost", "doubled", "rate"):
        assert f"│ {row}" in result.stdout
    assert "oncebox charged each of the 20 exactly once" in result.stdout
    assert "usual handler: 25 deliveries to come, 1 kills planned" in result.stderr
    assert "\x1b" not in result.output
    assert len(result.stderr.splitlines()) <= 12


def test_the_users_own_tables_policy_and_settings_stay_out_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "oncebox.toml").write_text("[consumers.shipping]\nbatch = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONCEBOX_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    with sqlite3.connect("a shop's #1.db") as connection:
        connection.execute("CREATE TABLE oncebox_ledger (mine text)")
    connection.close()
    url = "sqlite:///a shop's %231.db"
    code, report = demo_json("--messages", "5", "--duplicates", "1", "--kills", "0", "--database", url)
    assert (code, report["oncebox"]["effects"]) == (0, 5)
    with sqlite3.connect("a shop's #1.db") as connection:
        left = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'oncebox%'").fetchall()
    connection.close()
    assert left == [("oncebox_ledger",)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--messages", "0"), "--messages"),
        (("--messages", "-5"), "--messages"),
        (("--messages", "many"), "valid integer"),
        (("--duplicates", "-1"), "--duplicates"),
        (("--kills", "-1"), "--kills"),
        (("--seed", "-1"), "--seed"),
        (("--database", "mysql://localhost/shop"), "unknown database scheme 'mysql'"),
        (("--database", "shop.db"), "not a database URL"),
        (("--database", "sqlite:///no/such/folder/x.db"), "can't open its file"),
        (("--database", "postgresql+asyncpg://localhost/shop"), "use postgresql://"),
        (("--database", "postgresql://me:secret@127.0.0.1:1/shop"), "can't be reached"),
    ],
)
def test_what_can_not_be_run_is_said_clearly(arguments: tuple[str, str], said: str) -> None:
    result = demo(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert "secret" not in result.output
    assert "Traceback" not in result.output


def test_sqlite_needs_no_postgresql_driver() -> None:
    script = (
        "import sys; sys.modules['psycopg'] = sys.modules['asyncpg'] = None\n"
        "import oncebox.demo.command, oncebox.demo.protected, oncebox.drivers.sqlite"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
