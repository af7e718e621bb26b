"""What lies between an app and PostgreSQL, and what gets through it."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from oncebox.doctor import Severity, pooler
from oncebox.schema import migrate
from tests.doctor.kit import ask

DRIVERS = pytest.mark.parametrize("scheme", ["postgresql", "postgresql+asyncpg"])


def _keeps_prepared() -> bool:
    """Since 1.21 PgBouncer can keep prepared statements, and since 1.24 it does so by default."""
    binary = shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/usr/bin") or "pgbouncer"
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20).stdout
    found = re.search(r"PgBouncer (\d+)\.(\d+)", said)
    return found is not None and (int(found[1]), int(found[2])) >= (1, 24)


@DRIVERS
def test_a_pooler_that_the_url_does_not_name(
    pg_url: str, pgbouncer_url: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooler, "RINGS", 10)
    migrate(pg_url)
    found = ask(pgbouncer_url.replace("postgresql", scheme))
    assert {"pooler-unnamed", "notify-lost"} <= found.codes
    assert found.of("pooler-unnamed").severity is Severity.ERROR


@DRIVERS
def test_a_pooler_that_the_url_names(pg_url: str, pgbouncer_url: str, scheme: str) -> None:
    migrate(pg_url)
    found = ask(f"{pgbouncer_url.replace('postgresql', scheme)}?pooler=transaction")
    # asyncpg prepares again by itself what a server does not know.
    copes = scheme.endswith("asyncpg") or _keeps_prepared()
    assert found.codes == (set() if copes else {"pooler-prepared"})


@DRIVERS
def test_a_pooler_that_is_named_and_not_there(pg_url: str, scheme: str) -> None:
    migrate(pg_url)
    assert ask(f"{pg_url.replace('postgresql', scheme)}?pooler=transaction").codes == {"pooler-absent"}
