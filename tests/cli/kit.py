"""The command line as people run it: a process of its own, in a folder of its own."""

import atexit
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.cli import warm
from tests.crash.nursery import Nursery
from tests.servers.process import kill_tree
from tests.waiting import eventually_async

COMMAND = [sys.executable, "-m", "oncebox.cli"]


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The document it printed; anything else on standard output is an error."""
        assert self.code == 0, self.err
        return json.loads(self.out)


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Ours, without any setting of oncebox's, and with plain output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONCEBOX_", "PG"))}
    return {**kept, "NO_COLOR": "1", "TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1", **(extra or {})}


def oncebox(*words: str, cwd: Path, env: dict[str, str] | None = None) -> Done:
    """Run a command to its end."""
    if any(name.startswith("PYTHON") for name in env or ()):
        # What an interpreter reads when it starts.
        command = [*COMMAND, *words]
        done = subprocess.run(
            command, cwd=cwd, env=environment(env), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        with _forking:
            child = _warm().fork(
                "tests.cli.warm:main", words=words, cwd=str(cwd), env=environment(env), path=_path(), out=out.name,
                err=err.name,
            )  # fmt: skip
        try:
            code = child.wait(60)
        except AssertionError:
            child.kill()
            raise
        return Done(code, out.read().decode(), err.read().decode())


_forking = threading.Lock()


@functools.cache
def _warm() -> Nursery:
    """Forks commands; one for all tests of this process."""
    folder = Path(tempfile.mkdtemp(prefix="oncebox-warm-"))
    nursery = Nursery(folder, *warm.MODULES)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(nursery.close)
    return nursery


@functools.cache
def _path() -> list[str]:
    """Where a fresh interpreter looks for modules, besides its folder."""
    command = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    done = subprocess.run(command, env=environment(), capture_output=True, check=True, timeout=60)
    return list(json.loads(done.stdout))


class Running:
    """`oncebox run …` in the background, with its log in a file; killed with its children at the end."""

    def __init__(self, *words: str, cwd: Path, env: dict[str, str] | None = None) -> None:
        self.log_file = cwd / "run.log"
        self.out_file = cwd / "run.out"
        with self.log_file.open("wb") as log, self.out_file.open("wb") as out:
            self.process = subprocess.Popen(
                [*COMMAND, "run", *words],
                cwd=cwd,
                env=environment(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def out(self) -> str:
        return self.out_file.read_text()

    async def says(self, text: str, times: int = 1, seconds: float = 90) -> None:
        """Wait until the log has `text`, so many times."""

        def said() -> bool:
            assert self.log.count(text) >= times or self.process.poll() is None, self.log
            return self.log.count(text) >= times

        try:
            await eventually_async(said, seconds)
        except AssertionError:
            raise AssertionError(f"{text!r} is not in the log:\n{self.log}") from None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ends(self, seconds: float = 90) -> int:
        """Wait for its end; the exit code."""
        try:
            await eventually_async(lambda: self.process.poll() is not None, seconds)
        except AssertionError:
            raise AssertionError(f"it still runs after {seconds:g} s:\n{self.log}") from None
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kill_tree(self.process)
