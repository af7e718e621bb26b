"""kill -9 at every step of purge and archive: each row is in the ledger or in a verified part, never in neither."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import Postgres


def died(database: str, archive: str, stride: int = 1) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.operate.dying", database, archive, str(stride)]
    done = subprocess.run(command, capture_output=True, timeout=110, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def judge(found: dict[str, object], stride: int = 1) -> None:
    assert found["lost"] == ""
    assert found["kills"] == int(str(found["moments"])) // stride, "it died at each of its moments"
    assert found["left"] == found["rounds"], "what is not past its window stayed, and nothing else"
    assert int(str(found["moments"])) >= 15


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_a_killed_walk_loses_nothing(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    if engine == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        url = postgres.create_database()
    judge(died(url, str(tmp_path / "archive")))


@pytest.mark.xdist_group("s3")
def test_nor_does_one_that_writes_to_a_bucket(tmp_path: Path, bucket: str) -> None:
    judge(died(f"sqlite:///{tmp_path / 'shop.db'}", bucket, stride=3), stride=3)
