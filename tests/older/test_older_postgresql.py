"""What hangs on the server's version runs on the system's PostgreSQL too, where that is older than the packaged one."""

import os
import subprocess
import sys

import pytest

from tests.conftest import missing
from tests.servers import Unavailable
from tests.servers.postgres import BINARIES, system_binaries

FILES = [
    "tests/guard/test_transactions.py",
    "tests/guard/test_claims.py",
    "tests/guard/test_psycopg.py",
    "tests/guard/test_asyncpg.py",
    "tests/guard/test_beside_an_app.py",
    "tests/core/test_rights.py",
    "tests/core/test_handlers_that_end_transactions.py",
    "tests/core/test_one_effect.py",
    "tests/engines/test_schema.py",
    "tests/engines/test_statistics.py",
    "tests/engines/test_plans_postgresql.py",
    "tests/operate/test_partitions.py",
]
"""The guard's marks, the checked end of a transaction, migrations, plans and partitions."""


@pytest.mark.timeout(900)
@pytest.mark.skipif(BINARIES in os.environ, reason="a server is named already")
def test_the_systems_postgresql_does_as_well() -> None:
    found = system_binaries()
    if not found:
        missing(Unavailable("no PostgreSQL of the system's: apt-get install postgresql"))
    told = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-n",
            "0",
            "-k",
            "not sqlite",
            *FILES,
        ],
        env={**told, BINARIES: str(found[0])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    version = subprocess.run([found[0] / "postgres", "--version"], capture_output=True, text=True, check=True)
    print(version.stdout, done.stdout.splitlines()[-1])
