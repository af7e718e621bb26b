"""A private AWS: moto's server, with SQS, SNS and S3. It keeps nothing when it ends."""

import http.client
import signal
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers.moto_app import LAYOUT
from tests.servers.process import (
    Unavailable,
    end,
    free_port,
    kill_tree,
    private_folder,
    remove_folder,
    spawn,
    tail,
)
from tests.waiting import eventually

REGION = "eu-west-1"
_START_TRIES = 5


class Moto:
    """One server for all of AWS, at `url`. Every credential is good, unless `checks_credentials`."""

    def __init__(self, *, checks_credentials: bool = False) -> None:
        if find_spec("moto") is None:
            raise Unavailable("moto is not installed (pip install 'moto[server]')")
        self.port = 0
        self._arguments = ["credentials"] if checks_credentials else []
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = private_folder("oncebox-moto-")
        self._log = self._folder / "log"
        self._control = self._folder / "control"
        self._control.write_bytes(LAYOUT.pack(0.0, 0, 0))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def advance(self, seconds: float) -> None:
        """Move the clock that visibility, delays and retention go by."""
        (ahead,) = struct.unpack("d", self._read(0, 8))
        self._write(0, struct.pack("d", ahead + seconds))

    def fail(self, *, deletes: int = 0, sends: int = 0) -> None:
        """The next entries of batches fail, through no fault of their sender."""
        self._write(8, struct.pack("ii", deletes, sends))

    def start(self) -> Self:
        """Start and wait until it answers."""
        assert not self.running, "moto is already running"
        for _ in range(_START_TRIES if self.port == 0 else 1):
            port = self.port or free_port()
            if self._start_on(port):
                self.port = port
                return self
        raise RuntimeError(f"moto did not start:\n{tail(self._log)}")

    def _start_on(self, port: int) -> bool:
        script = Path(__file__).with_name("moto_app.py")
        # Safe path: beside the script lies this file, whose name is moto too.
        command = [sys.executable, "-P", str(script), str(port), str(self._control), *self._arguments]
        self._process = spawn(
            command, cwd=self._folder, log=self._log, death_signal="KILL", as_ourselves=True
        )
        eventually(lambda: not self.running or _answers(port), seconds=60)
        return self.running

    def _read(self, place: int, count: int) -> bytes:
        with self._control.open("rb") as file:
            file.seek(place)
            return file.read(count)

    def _write(self, place: int, data: bytes) -> None:
        with self._control.open("r+b") as file:
            file.seek(place)
            file.write(data)

    def kill9(self) -> None:
        if self._process is not None:
            kill_tree(self._process)

    def stop(self) -> None:
        """End it at once, and all that it holds."""
        if self._process is not None:
            end(self._process, signal.SIGTERM)

    def close(self) -> None:
        try:
            self.stop()
        finally:
            remove_folder(self._folder)

    def __enter__(self) -> Self:
        try:
            return self if self.running else self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/moto-api/data.json")
        return connection.getresponse().status < 500
    except OSError:
        return False
    finally:
        connection.close()
