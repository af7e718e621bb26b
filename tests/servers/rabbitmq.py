"""A private RabbitMQ node."""

import atexit
import functools
import itertools
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers.process import (
    Unavailable,
    end,
    free_port,
    kill_tree,
    private_folder,
    remove_folder,
    server_user,
    spawn,
    tail,
)
from tests.waiting import eventually

_START_TRIES = 3
_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Debian's own script; the one on the path would switch to the system's user and folders."""

_CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
log.console = true
log.console.level = info
log.file = false
disk_free_limit.absolute = 1MB
vm_memory_high_watermark.absolute = 1GB
raft.wal_max_size_bytes = 16000000
"""


class RabbitMQServer:
    """One node in a folder of its own, user `guest`. The ports and the data survive `kill9` and `restart`."""

    def __init__(self) -> None:
        if not _SCRIPT.exists() or shutil.which("epmd") is None:
            raise Unavailable("RabbitMQ is not installed (Debian: apt-get install rabbitmq-server)")
        self.port = 0
        self._distribution_port = 0
        self._names = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._folder = private_folder("oncebox-rabbitmq-")
        self._log = self._folder / "log"

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def new_name(self) -> str:
        """A queue or exchange that no other test uses."""
        return f"q{next(self._names)}"

    def start(self) -> Self:
        """Start and wait until it speaks AMQP. The ports are chosen once, then kept."""
        assert not self.running, "the node is already running"
        for _ in range(_START_TRIES if self.port == 0 else 1):
            port, distribution_port = self.port or free_port(), self._distribution_port or free_port()
            if self._start_on(port, distribution_port):
                self.port, self._distribution_port = port, distribution_port
                return self
        raise RuntimeError(f"RabbitMQ did not start:\n{tail(self._log, 60)}")

    def _start_on(self, port: int, distribution_port: int) -> bool:
        if self._epmd is None:
            self._epmd_port = free_port()
            # Started by us, it ends with us; a node that finds none leaves a daemon behind.
            epmd = ["env", "epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]
            self._epmd = spawn(epmd, cwd=self._folder, log=self._log, death_signal="KILL")
            eventually(lambda: _answers(self._epmd_port), 10)
        self._write("rabbitmq.conf", _CONFIGURATION.format(port=port))
        self._write("plugins", "[].\n")
        self._write(".erlang.cookie", "oncebox", 0o400)
        settings = {
            "HOME": self._folder,
            "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/sbin:/bin",
            "RABBITMQ_NODENAME": f"test{port}@localhost",
            "RABBITMQ_NODE_PORT": port,
            "RABBITMQ_DIST_PORT": distribution_port,
            "ERL_EPMD_PORT": self._epmd_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONFIG_FILE": self._folder / "rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": self._folder / "none",
            "RABBITMQ_ADVANCED_CONFIG_FILE": self._folder / "none.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self._folder / "plugins",
            "RABBITMQ_MNESIA_BASE": self._folder / "data",
            "RABBITMQ_LOG_BASE": self._folder / "logs",
            "RABBITMQ_PID_FILE": self._folder / "pid",
            # Become the node, instead of waiting for it: a signal for the script would leave the node behind.
            "RUNNING_UNDER_SYSTEMD": "true",
            # Idle schedulers that spin would take a core from everybody else.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        }
        command = ["env", "-i", *(f"{name}={value}" for name, value in settings.items()), str(_SCRIPT)]
        self._process = spawn(command, cwd=self._folder, log=self._log, death_signal="KILL")
        eventually(lambda: not self.running or _speaks_amqp(port), seconds=100)
        return self.running

    def _write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self._folder / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(mode)
        user = server_user()
        if user is not None:
            os.chown(path, user.pw_uid, user.pw_gid)

    def kill9(self) -> None:
        """SIGKILL the node, as the OOM killer or a power cut would, once it knows its queues by disk.

        RabbitMQ 3.10 writes the name of a new quorum queue about a second after it has answered the
        declaration, and has confirmed messages. Killed before that, it never brings the queue back: its
        messages are gone, and whoever declares or publishes waits for ever. No client can mend that.
        """
        if self.running:
            eventually(self._queues_are_on_disk)
        self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            kill_tree(self._process)

    def _queues_are_on_disk(self) -> bool:
        for names in (self._folder / "data").rglob("names.dets"):
            known = names.read_bytes()
            if any(entry.is_dir() and entry.name.encode() not in known for entry in names.parent.iterdir()):
                return False
        return True

    def stop(self) -> None:
        """Shut down in order."""
        if self._process is not None:
            end(self._process, signal.SIGTERM, seconds=60)

    def restart(self) -> None:
        """Kill it if need be, then start on the same ports with the same data."""
        self.kill9()
        self.start()

    def close(self) -> None:
        """End the node and remove its folder."""
        try:
            self._kill()
            if self._epmd is not None:
                kill_tree(self._epmd)
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


@functools.cache
def shared_node() -> RabbitMQServer:
    """The process's node, for all tests that may share one: it takes seconds to start."""
    server = RabbitMQServer()
    atexit.register(server.close)
    return server.start()


def _answers(port: int) -> bool:
    return _asked(port, lambda link: True)


def _speaks_amqp(port: int) -> bool:
    """Whether the node greets us: it listens a little before it does."""

    def greets(link: socket.socket) -> bool:
        link.sendall(b"AMQP\x00\x00\x09\x01")
        return bool(link.recv(1))

    return _asked(port, greets)


def _asked(port: int, question: Callable[[socket.socket], bool]) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
            return question(link)
    except OSError:
        return False
