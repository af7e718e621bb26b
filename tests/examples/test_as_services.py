"""Every example under `oncebox run`, in one process and in several, stopped as an operator would."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.examples.conftest import ROOT, Rows
from tests.waiting import eventually


@pytest.mark.timeout(240)  # several interpreters each
@pytest.mark.parametrize(
    ("name", "workers", "table", "effects"),
    [
        ("payments", 1, "entry", 5),
        ("inventory", 2, "reservation", 4),
        ("cases", 2, "case_event", 12),
        ("integration_events", 3, "order_view", 500),
    ],
)
def test_example_runs_as_a_service_and_drains(
    name: str, workers: int, table: str, effects: int, database_url: str, rows: Rows
) -> None:
    # Every process has an in-process broker of its own with all of the messages in it.
    service = subprocess.Popen(
        [sys.executable, "-m", "oncebox.cli", "run", f"examples.{name}:app", "--workers", str(workers)],
        env={**os.environ, "ONCEBOX_DATABASE_URL": database_url, "EVENTS": str(effects)},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(_counts(service, rows, table, effects), seconds=120)
        service.send_signal(signal.SIGTERM)
        _, log = service.communicate(timeout=60)
    finally:
        if service.poll() is None:
            service.kill()
            service.communicate()
    assert service.returncode == 0, log
    assert rows(f"SELECT count(*) FROM {table}") == [(effects,)]


def _counts(service: subprocess.Popen[Any], rows: Rows, table: str, effects: int) -> Callable[[], bool]:
    def all_effects_are_there() -> bool:
        if service.poll() is not None:
            raise AssertionError(service.communicate()[1])
        try:
            return bool(rows(f"SELECT count(*) FROM {table}")[0][0] >= effects)
        except Exception as error:
            # The service makes its tables when it starts.
            if "no such table" in str(error) or "does not exist" in str(error):
                return False
            raise

    return all_effects_are_there
