"""The README's quickstart as a reader types it: its file, a real server, its own `curl` lines."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.docs.page import blocks
from tests.waiting import eventually

README = Path(__file__).parents[2] / "README.md"
SECONDS = 60
"""The longest that an answer may take on a slow machine."""


def test_readme_opens_with_the_two_commands() -> None:
    lines = README.read_text().splitlines()
    assert lines[2:5] == ["```", lines[3], lines[4]]
    assert lines[3].startswith("make demo ")
    assert lines[4].startswith("make test ")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[str]:
    """The quickstart's server, in a folder with nothing else in it."""
    (block,) = [block for block in blocks(README) if block.title == "shop.py"]
    (tmp_path / "shop.py").write_text(block.code)
    assert "uvicorn shop:api" in README.read_text()
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            # A port of the system's choosing: one that was free a moment ago may be somebody else's by now.
            [sys.executable, "-m", "uvicorn", "shop:api", "--port", "0"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONWARNINGS": "error"},
            stdout=subprocess.DEVNULL,
            stderr=output,
        )

    def place() -> re.Match[str] | None:
        assert server.poll() is None, log.read_text()
        return re.search(r"running on http://(\S+:\d+) ", log.read_text())

    try:
        found = eventually(place, seconds=60)
        assert found is not None
        yield found[1]
    finally:
        server.terminate()
        server.wait(timeout=30)


def test_the_same_curl_twice_has_one_effect_and_one_result(shop: str) -> None:
    session = re.findall(r"^\$ (curl .+)\n(.+)$", README.read_text(), re.MULTILINE)
    assert len(session) == 3
    assert session[0][0] == session[1][0]
    for command, said in session:
        words = shlex.split(command)
        header, body = words[words.index("-H") + 1], words[words.index("-d") + 1]
        name, _, value = header.partition(": ")
        (url,) = [word for word in words if word.startswith("localhost:8000")]
        answer = httpx.post(
            f"http://{url.replace('localhost:8000', shop)}",
            headers={name: value},
            content=body,
            timeout=SECONDS,
        )
        assert answer.text == said


def test_an_id_that_is_refused_is_the_callers_mistake(shop: str) -> None:
    body = {"id": "", "account": "ada", "amount": 1}
    answer = httpx.post(f"http://{shop}/payments", json=body, timeout=SECONDS)
    assert (answer.status_code, list(answer.json())) == (422, ["error"])
