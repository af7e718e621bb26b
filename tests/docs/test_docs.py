"""Every Python block in README.md and docs/ runs, as a reader would run it: page by page, top to bottom."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.docs.page import blocks
from tests.servers import Unavailable

ROOT = Path(__file__).parents[2]
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if page.exists()]


def _run(page: Path, cwd: Path, database_url: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    if database_url is not None:
        environment["DATABASE_URL"] = database_url
    return subprocess.run(
        [sys.executable, str(Path(__file__).with_name("page.py")), str(page)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
    )


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_page_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    # A page that names the variable gets a fresh PostgreSQL database in it.
    code = [block.code for block in blocks(page)]
    if not code:
        return  # nothing that looks like Python, or `blocks` had refused it
    if any('"redis-server"' in text for text in code) and shutil.which("redis-server") is None:
        missing(Unavailable("Redis: no redis-server was found"))
    wants_database = any("DATABASE_URL" in text for text in code)
    done = _run(page, tmp_path, request.getfixturevalue("pg_url") if wants_database else None)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", ["batches.md", "outgoing.md"])
def test_page_that_waits_for_workers_can_be_run_again(page: str, tmp_path: Path) -> None:
    for _ in range(2):
        done = _run(ROOT / "docs" / "how-to" / page, tmp_path)
        assert done.returncode == 0, done.stdout


def test_blocks_share_a_namespace_and_titles_become_files(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```python title="shop.py"\nprice = 3\n```\n\n- in a list:\n\n'
        "  ```python\n  import shop\n  assert shop.price == price\n  print('ran')\n  ```\n"
    )
    done = _run(page, tmp_path)
    assert (done.returncode, done.stdout) == (0, "ran\n")


def test_a_failing_block_fails_with_the_page_and_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nok = True\nassert not ok\n```\n")
    done = _run(page, tmp_path)
    assert done.returncode == 1
    assert f'"{page}", line 5' in done.stdout


@pytest.mark.parametrize("info", ["python no-run", "py", "pycon", "python3"])
def test_a_python_block_that_would_not_run_is_an_error(tmp_path: Path, info: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"\n```{info}\nprint()\n```\n")
    with pytest.raises(ValueError, match=r"page\.md:2: .*every block runs"):
        blocks(page)
