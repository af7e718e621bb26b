"""A private PgBouncer in transaction mode."""

import os
import shutil
import signal
import subprocess
from types import TracebackType
from typing import Self

import psycopg

from tests.servers.postgres import USER
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

_START_TRIES = 5

_CONFIGURATION = """\
[databases]
* = host=127.0.0.1 port={postgres_port} user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
"""


class PgBouncer:
    """Pools connections to one PostgreSQL port; every database there is reachable by its name."""

    def __init__(self, postgres_port: int, pool_size: int = 2) -> None:
        """A small pool makes statements of one client land on different server connections."""
        # Debian puts it in sbin, which is not on every user's path.
        binary = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
        if binary is None:
            raise Unavailable("PgBouncer is not installed (Debian: apt-get install pgbouncer)")
        self.port = 0
        self._binary = binary
        self._postgres_port = postgres_port
        self._pool_size = pool_size
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = private_folder("oncebox-pgbouncer-")
        self._log = self._folder / "log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def start(self) -> Self:
        """Start and wait until a client reaches PostgreSQL through it. The port is kept afterwards."""
        assert not self.running, "PgBouncer is already running"
        for _ in range(_START_TRIES if self.port == 0 else 1):
            port = self.port or free_port()
            if self._start_on(port):
                self.port = port
                return self
        raise RuntimeError(f"PgBouncer did not start:\n{tail(self._log)}")

    def _start_on(self, port: int) -> bool:
        configuration = self._folder / "pgbouncer.ini"
        configuration.write_text(
            _CONFIGURATION.format(
                port=port, postgres_port=self._postgres_port, user=USER, pool_size=self._pool_size
            )
        )
        configuration.chmod(0o644)
        command = [self._binary, str(configuration)]
        # It holds no data, so the hardest signal is the safest way not to leave one behind.
        self._process = spawn(command, cwd=self._folder, log=self._log, death_signal="KILL")
        eventually(lambda: not self.running or self._answers(port), seconds=30)
        return self.running

    def _answers(self, port: int) -> bool:
        try:
            psycopg.connect(f"postgresql://{USER}@127.0.0.1:{port}/postgres", connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill9(self) -> None:
        if self._process is not None:
            kill_tree(self._process)

    def stop(self) -> None:
        """End it at once; clients are disconnected."""
        if self._process is not None:
            end(self._process, signal.SIGQUIT)

    def restart(self) -> None:
        self.stop()
        self.start()

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
