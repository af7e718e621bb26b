"""The kit on the examples: each of them is right, on both engines."""

import importlib.util
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from oncebox.testing import prove_once

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


@pytest.fixture
def example(
    request: pytest.FixtureRequest, database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Any:
    """The example that the test is named after, on a database of its own."""
    name = request.function.__name__.removeprefix("test_")
    monkeypatch.setenv("ONCEBOX_DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)
    file = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"proven_{name}_{next(_numbers)}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_payments(example: Any) -> None:
    captures = example.captures()
    proof = prove_once(example.app, captures[0])
    assert proof.crash_points >= 15
    assert proof.outcomes[0].result == {"balance_cents": 9_900}
    prove_once(example.app, captures[5], status="dead", lines_max=2)


def test_inventory(example: Any) -> None:
    first, second, third = example.orders()
    assert prove_once(example.app, first, second, any_order=True, lines_max=5).orders == 1
    # What is left does not do for a third one.
    assert prove_once(example.app, third, status="dead", lines_max=2).outcomes[0].reason == "terminal"


def test_integration_events(example: Any) -> None:
    proof = prove_once(example.app, *example.events()[:2], any_order=True)
    assert proof.crash_points >= 15
    assert proof.orders == 1
