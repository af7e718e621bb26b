"""Every example runs as its first lines say, with nothing but Python and a folder to write to."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.conftest import ROOT


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("payments", ["ada: 91.00", "ben: 94.00", "5 payments, 5 entries, 5 receipts"]),
        (
            "inventory",
            ["kettle: 4 on hand, 4 reserved", "order-3-placed is dead: terminal (not enough of sku kettle)"],
        ),
        ("cases", ["c-2: closed (version 4)", "rebuilt from 12 events: the same page", "mails: 6"]),
        ("integration_events", ["10000 deliveries stored and acked", "5000 orders, 5000 rows, written by"]),
    ],
)
def test_example_runs_without_any_set_up(name: str, said: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        env={"PATH": "", "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    for line in said:
        assert line in done.stdout
