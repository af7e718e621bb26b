"""The README's quickstart as a reader types it: its file, a real server, its own `curl` lines."""

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.docs.page import blocks
from tests.servers.process import free_port
from tests.waiting import eventually

README = Path(__file__).parents[2] / "README.md"


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
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "shop:api", "--port", str(port)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )

    def is_up() -> bool:
        assert server.poll() is None, server.stderr.read() if server.stderr else ""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        eventually(is_up, seconds=30)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.communicate(timeout=30)


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
            f"http://{url.replace('localhost:8000', shop)}", headers={name: value}, content=body
        )
        assert answer.text == said


def test_an_id_that_is_refused_is_the_callers_mistake(shop: str) -> None:
    answer = httpx.post(f"http://{shop}/payments", json={"id": "", "account": "ada", "amount": 1})
    assert (answer.status_code, list(answer.json())) == (422, ["error"])
