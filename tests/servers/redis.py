"""A private Redis server that writes every command to disk before it answers."""

import shutil
import socket
import subprocess
from types import TracebackType
from typing import Self

from tests.servers.process import (
    Unavailable,
    free_port,
    kill_tree,
    private_folder,
    remove_folder,
    spawn,
    tail,
)
from tests.waiting import eventually

PASSWORD = "s3cret-canary"
_START_TRIES = 5


class RedisServer:
    """One server in a folder of its own. The port and the data survive `kill9` and `restart`."""

    def __init__(self, *settings: str, password: str = "") -> None:
        """`settings` are extra words of the command line, which win over those below."""
        binary = shutil.which("redis-server")
        if binary is None:
            raise Unavailable("Redis: no redis-server was found")
        self.port = 0
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = private_folder("oncebox-redis-")
        self._log = self._folder / "log"
        durable = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        secured = ["--requirepass", password] if password else []
        self._command = [
            binary,
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self._folder),
            *durable,
            *secured,
            *settings,
        ]

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def url(self) -> str:
        login = f":{self._password}@" if self._password else ""
        return f"redis://{login}127.0.0.1:{self.port}/0"

    def start(self) -> Self:
        """Start and wait until it answers. The port is chosen once, then kept."""
        assert not self.running, "the server is already running"
        for _ in range(_START_TRIES if self.port == 0 else 1):
            port = self.port or free_port()
            if self._start_on(port):
                self.port = port
                return self
        raise RuntimeError(f"Redis did not start:\n{tail(self._log)}")

    def _start_on(self, port: int) -> bool:
        command = [*self._command, "--port", str(port)]
        self._process = spawn(command, cwd=self._folder, log=self._log, death_signal="KILL")
        eventually(lambda: not self.running or self._answers(port), seconds=30)
        return self.running

    def _answers(self, port: int) -> bool:
        """Not while it still reads its file."""
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(7).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def kill9(self) -> None:
        """SIGKILL, as the OOM killer would."""
        if self._process is not None:
            kill_tree(self._process)

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
