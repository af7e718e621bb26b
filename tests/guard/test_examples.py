"""Every guard example runs as its first lines say, and pays once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENTRY = ["first", "duplicate", "entries: 1"]
BALANCE = ["{'credited': 100}", "{'credited': 100}", "ada: 100"]


def run(name: str, folder: Path, url: str = "") -> list[str]:
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py")],
        env=kept | {"TMPDIR": str(folder)} | ({"ONCEBOX_DATABASE_URL": url} if url else {}),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("guard_sqlite3", BALANCE),
        ("guard_sqlalchemy", ENTRY),
        ("guard_sqlalchemy_async", ENTRY),
        ("guard_django", ENTRY),
    ],
)
def test_example_on_sqlite(name: str, said: list[str], tmp_path: Path) -> None:
    assert run(name, tmp_path) == said


@pytest.mark.parametrize(("name", "said"), [("guard_psycopg", BALANCE), ("guard_asyncpg", BALANCE)])
def test_example_on_postgresql(name: str, said: list[str], tmp_path: Path, pg_url: str) -> None:
    assert run(name, tmp_path, pg_url) == said


def test_async_sqlalchemy_example_on_postgresql(tmp_path: Path, pg_url: str) -> None:
    url = pg_url.replace("postgresql://", "postgresql+asyncpg://")
    assert run("guard_sqlalchemy_async", tmp_path, url) == ENTRY


def test_every_guard_example_is_run_here() -> None:
    found = {path.stem for path in (ROOT / "examples").glob("guard_*.py")}
    assert found == {
        "guard_sqlite3", "guard_psycopg", "guard_asyncpg", "guard_sqlalchemy", "guard_sqlalchemy_async",
        "guard_django",
    }  # fmt: skip
