"""Real processes, cheaply: a warm interpreter that forks one child per job.

A kill is only a kill if a process dies, and a fresh interpreter costs half a second. The nursery is
one process, single-threaded, with everything imported; it forks on request, tells the pid, and
tells how each child ended. Children end with it, and it ends with the test.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from oncebox.engines.queries import load

WARM = (
    "oncebox.drivers.asyncpg", "oncebox.drivers.psycopg", "oncebox.drivers.sqlite", "tests.crash.cells",
    "tests.crash.migrating", "tests.crash.worker",
)  # fmt: skip
"""What every child needs, imported once."""


class Child:
    """A forked process: its pid, and once it has ended, its status (-9: killed)."""

    def __init__(self, log: Path) -> None:
        self.pid = 0
        self.status: int | None = None
        self.log = log
        self.born = threading.Event()
        self.ended = threading.Event()

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal, unless it is known to have ended."""
        if self.status is None:
            os.kill(self.pid, how)

    def wait(self, seconds: float = 30) -> int:
        """Its status, once it has ended."""
        assert self.ended.wait(seconds), f"child {self.pid} has not ended within {seconds:g} s"
        assert self.status is not None
        return self.status

    @property
    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


class Nursery:
    """Forks children that run `function(**arguments)` by name, each with its own log."""

    def __init__(self, folder: Path, *warm: str) -> None:
        """`warm` names the modules to import beforehand, instead of those that the crash tests need."""
        self._folder = folder
        self._children: dict[int, Child] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.nursery", *(warm or WARM)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name="nursery", daemon=True)
        self._reader.start()

    def fork(self, function: str, **arguments: Any) -> Child:
        """A new child that runs `module:function`; returns when it exists."""
        number = len(self._children) + 1
        child = self._children[number] = Child(self._folder / f"child-{number}.log")
        job = {"number": number, "function": function, "arguments": arguments, "log": str(child.log)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()
        assert child.born.wait(30), "the nursery does not answer"
        return child

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            child = self._children[told["number"]]
            if "pid" in told:
                child.pid = told["pid"]
                child.born.set()
            else:
                child.status = told["status"]
                child.ended.set()

    def clear(self) -> None:
        """Kill who is left, and wait for their ends."""
        left = [child for child in self._children.values() if child.pid and child.status is None]
        for child in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        for child in left:
            child.wait()

    def close(self) -> None:
        """Kill what is left."""
        self.clear()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._reader.join(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _run(job: dict[str, Any]) -> None:
    """In the child: run the job, with its output in its log; never returns."""
    status = 1
    try:
        log = os.open(job["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(0)
        module, _, name = job["function"].partition(":")
        getattr(importlib.import_module(module), name)(**job["arguments"])
        status = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def main() -> None:
    """In the nursery: fork on request, report pids and endings, end when nobody asks any more."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for dialect in ("sqlite", "postgresql"):
        load(dialect, "oncebox")
    gc.freeze()
    wake, signalled = os.pipe()
    os.set_blocking(signalled, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(signalled)
    running: dict[int, int] = {}
    buffer = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            _tell(number=running.pop(pid), status=os.waitstatus_to_exitcode(status))
        if 0 not in ready:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            job = json.loads(line)
            parent = os.getpid()
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: die with the nursery
                if os.getppid() != parent:
                    os._exit(1)
                _run(job)
            running[pid] = job["number"]
            _tell(number=job["number"], pid=pid)


def _tell(**what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main()
