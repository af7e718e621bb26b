"""examples/integration_events.py: stored, acked, and processed once each, by processors side by side."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples.conftest import ROOT, Rows

EVENTS = 3000


@pytest.fixture(autouse=True)
def _fewer_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTS", str(EVENTS))


async def test_events_are_processed_once_by_several_processors(example: Any, rows: Rows) -> None:
    await example.main()
    assert rows("SELECT count(*), count(DISTINCT order_id) FROM order_view") == [(EVENTS, EVENTS)]
    assert rows("SELECT count(*) FROM oncebox.queue") == [(0,)]
    assert example.broker.stats()["integration-events"].acked == 2 * EVENTS


async def test_events_are_acked_when_stored_and_wait_for_a_processor(example: Any, rows: Rows) -> None:
    async with example.app.running(only=("sources",)):
        await example.broker.drained("integration-events")
    assert example.seen() == (0, 0, 0)
    assert rows("SELECT count(*) FROM oncebox.queue") == [(EVENTS,)]
    async with example.app.running(only=("workers",)):
        example.wait_until_processed()
    assert rows("SELECT count(*), count(DISTINCT order_id) FROM order_view") == [(EVENTS, EVENTS)]


def test_processes_that_all_receive_everything_have_one_effect_per_event(
    example: Any, rows: Rows, database_url: str, tmp_path: Path
) -> None:
    # Each process has a broker of its own with every event in it twice: three times the deliveries.
    children = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / "integration_events.py")],
            env={**os.environ, "ONCEBOX_DATABASE_URL": database_url},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(3)
    ]
    for child in children:
        output, _ = child.communicate(timeout=90)
        assert child.returncode == 0, output
        assert f"{2 * EVENTS} deliveries stored and acked" in output
    assert rows("SELECT count(*), count(DISTINCT order_id) FROM order_view") == [(EVENTS, EVENTS)]
    assert rows("SELECT count(*) FROM oncebox.queue") == [(0,)]
