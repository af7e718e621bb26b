"""Each example as a module of its own, on a fresh database."""

import importlib.util
import itertools
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)

Rows = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def example(
    request: pytest.FixtureRequest, database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Any:
    """The example that the test's module is named after: it reads its database's URL when it is imported."""
    name = request.path.stem.removeprefix("test_")
    monkeypatch.setenv("ONCEBOX_DATABASE_URL", database_url)
    # An oncebox.toml in the working folder would be read.
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(
        f"example_{name}_{next(_numbers)}", ROOT / "examples" / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Annotations are looked up by the module's name.
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rows(database_url: str) -> Rows:
    """What is committed, as a stranger sees it. Tables of oncebox are written `oncebox.x`."""

    def read(sql: str) -> list[tuple[Any, ...]]:
        if database_url.startswith("sqlite"):
            with closing(sqlite3.connect(database_url.removeprefix("sqlite:///"))) as reader:
                return reader.execute(sql.replace("oncebox.", "oncebox_")).fetchall()
        with psycopg.connect(database_url) as server:
            return server.execute(sql.encode()).fetchall()

    return read
