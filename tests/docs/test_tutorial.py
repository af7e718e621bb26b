"""The tutorial as a reader follows it: its files, its commands in order, and what they print.

Output is compared by its words: times, numbers of processes and the lines of tables are left out. What a
worker has yet to do is waited for. `oncebox run` keeps running, as in a second terminal.
"""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.waiting import eventually

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
_TITLE = re.compile(r'title="([\w.-]+)"')
_VARIES = re.compile(r"\d{4}-\d\d-\d\d \S+ UTC|\d+\.\d+( s)?|\d{4,}|[┃┏┗┡┩┳╇━│└┴┘┓─…]+")
_WORD = re.compile(r"[\w:|.{}\"-]+")


class Reader:
    """Two terminals in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {**os.environ, "PATH": path, "COLUMNS": "160"}
        self.service: subprocess.Popen[str] | None = None

    def type(self, command: str, shown: list[str]) -> None:
        if command.startswith("pip install"):
            return
        if command.startswith("oncebox run"):
            self.stop()
            self.service = subprocess.Popen(
                command.split(), cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True
            )
            return
        if command == "kill -9 PID":
            os.kill(self.pid_in_hand(), signal.SIGKILL)
            return
        deadline = time.monotonic() + 60
        while True:
            said = self.run(command)
            missing = [word for word in words("\n".join(shown)) if word not in words(said)]
            if not missing:
                return
            # Only looking may be repeated.
            assert command.split()[:2] in (["oncebox", "show"], ["oncebox", "status"]), (command, said)
            assert time.monotonic() < deadline, (command, missing, said)
            time.sleep(0.2)

    def run(self, command: str) -> str:
        if command.startswith("sqlite3 "):
            # The shell of SQLite may not be installed; its output is two columns with a bar.
            statement = command.split("'")[1]
            with closing(sqlite3.connect(self.folder / command.split()[1])) as reader:
                return "\n".join("|".join(map(str, row)) for row in reader.execute(statement))
        done = subprocess.run(
            command.split(), cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0 or command.startswith("oncebox show"), said
        return said

    def pid_in_hand(self) -> int:
        """What a reader takes from the table; asked of the file itself, which is quicker."""

        def busy() -> list[tuple[int]]:
            with closing(sqlite3.connect(self.folder / "shop.db")) as reader:
                return reader.execute(
                    "SELECT w.pid FROM oncebox_worker w JOIN oncebox_hand h ON h.worker = w.id"
                    " JOIN json_each(h.seqs) s JOIN oncebox_queue q ON q.seq = s.value"
                ).fetchall()

        return eventually(busy, seconds=60)[0][0]

    def stop(self) -> None:
        if self.service is not None:
            self.service.send_signal(signal.SIGINT)
            _, log = self.service.communicate(timeout=60)
            assert self.service.returncode == 0, log
            self.service = None


def words(text: str) -> list[str]:
    return _WORD.findall(_VARIES.sub(" ", text))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    if reader.service is not None:
        reader.service.terminate()
        reader.service.communicate(timeout=60)


@pytest.mark.timeout(300)  # two dozen commands, each an interpreter of its own
def test_tutorial_does_what_it_says(reader: Reader) -> None:
    assert shutil.which("oncebox", path=reader.environment["PATH"]), (
        "the command is installed with the package"
    )
    for token in MarkdownIt().parse(TUTORIAL.read_text()):
        if token.type != "fence":
            continue
        title = _TITLE.search(token.info)
        if title:
            (reader.folder / title[1]).write_text(token.content)
        elif token.info == "console":
            for part in token.content.split("$ ")[1:]:
                command, *shown = part.strip().splitlines()
                reader.type(command, shown)
    reader.stop()
