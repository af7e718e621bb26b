"""Starting and ending server processes that are ours, and only those."""

import fcntl
import os
import pwd
import random
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from tests.waiting import eventually

# A parent-death signal is tied to the thread that forked, not to the process. All servers are
# therefore forked by this one thread, which lives as long as the interpreter.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-spawner")


class Unavailable(Exception):
    """The server's binaries are not on this machine."""


# Below those that the system gives to whoever asks for any: a connection or a proxy that is made while a server
# is down would take its port, and the server could not come back.
_PORTS = range(10_240, 32_768)
_reserved: list[int] = []
"""Locked files, one per port, as long as this process lives."""


def free_port() -> int:
    """A loopback port on which nobody listens, and that no other process of these tests gets as long as this one
    lives. A stranger may still take it: callers try again."""
    return next(port for port in iter(lambda: random.SystemRandom().choice(_PORTS), 0) if reserve(port))


def reserve(port: int) -> bool:
    """Whether this port is ours now."""
    folder = Path(tempfile.gettempdir(), f"oncebox-ports-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except OSError:
        os.close(lock)
        return False
    _reserved.append(lock)
    return True


def server_user() -> pwd.struct_passwd | None:
    """Whom to run servers as: PostgreSQL and PgBouncer refuse root. None means ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise Unavailable("running as root, and there is neither a `postgres` nor a `nobody` user")


def reachable(path: Path) -> bool:
    """Whether any user can walk down to `path`: a 0700 home on the way hides what is below it."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in [path, *path.resolve().parents])


def private_folder(prefix: str) -> Path:
    """A new temporary folder that the server's user owns and can reach."""
    user = server_user()
    # macOS and some login managers point TMPDIR into a private folder; the others are shared.
    bases = [Path(base) for base in (tempfile.gettempdir(), "/tmp", "/var/tmp") if Path(base).is_dir()]
    base = bases[0] if user is None else next((base for base in bases if reachable(base)), bases[0])
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    return folder


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def run_as_server(command: Sequence[str], cwd: Path) -> None:
    """Run a short command as the server's user; its output becomes the error's text."""
    uid, gid, groups = _identity()
    done = subprocess.run(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        user=uid,
        group=gid,
        extra_groups=groups,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed ({done.returncode}):\n{done.stdout}")


def spawn(
    command: Sequence[str], cwd: Path, log: Path, death_signal: str, *, as_ourselves: bool = False
) -> subprocess.Popen[bytes]:
    """Start a server that gets `death_signal` when this interpreter dies, however it dies.

    With `as_ourselves` it keeps our user: for what takes root, and lives where only we can go.
    """
    setpriv = shutil.which("setpriv")  # Linux only; elsewhere the fixtures' own clean-up must do
    prefix = [setpriv, "--pdeathsig", death_signal] if setpriv else []
    uid, gid, groups = (None, None, None) if as_ourselves else _identity()

    def fork() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [*prefix, *command],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is for pytest, which then stops us in order
                user=uid,
                group=gid,
                extra_groups=groups,
            )

    return _spawner.submit(fork).result(timeout=30)


def end(process: subprocess.Popen[bytes], how: signal.Signals, seconds: float = 30) -> None:
    """Send one signal and wait; a server that ignores it is killed with its children."""
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            kill_tree(process)
            raise


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL the process and its descendants, and return when all are gone."""
    if process.poll() is not None:
        return
    root = psutil.Process(process.pid)
    root.suspend()  # a stopped parent starts no new child between the listing and the kill
    family = [*root.children(recursive=True), root]
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait(timeout=10)
    eventually(lambda: all(_gone(member) for member in family))


def _gone(process: psutil.Process) -> bool:
    # Orphans may stay zombies for ever where pid 1 does not reap them, as in many containers.
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"


def _identity() -> tuple[int | None, int | None, list[int] | None]:
    """User, group and further groups for a server; None leaves each as it is."""
    user = server_user()
    return (None, None, None) if user is None else (user.pw_uid, user.pw_gid, [])
