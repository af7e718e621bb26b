"""What leaves the process while a handler runs: connections, mail, requests, files, other programs.

Python's audit events tell most of it; bytes that go out on a connection that was open before have
none, so sending is watched at the socket itself. Libraries that speak to the network below Python
(libpq, librdkafka, gRPC, uvloop) are not seen here: what they change in the user's own database shows
in its rows.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from oncebox.brokers.memory import Memory as Broker
from oncebox.drivers.database import Database
from oncebox.testing.lines import is_users

_watching: Watch | None = None
_lock = threading.Lock()
_is_hooked = False
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_HARMLESS_CALLERS = ("logging/__init__.py", "logging/handlers.py", "tempfile.py", "importlib/_bootstrap")
_SENDS = ("send", "sendall", "sendto", "sendmsg")


class Sighting(msgspec.Struct, frozen=True):
    """Something left the process: what, where to, and the line of the user's that did it."""

    what: str
    to: str
    line: str


class Watch:
    """Notes what leaves the process. `allow` holds addresses ("host:port", "host"), paths and programs
    that may be reached; the app's own database always may."""

    def __init__(self, database: Database, allow: tuple[str, ...] = ()) -> None:
        self.seen: list[Sighting] = []
        self._allow = frozenset(allow)
        self._database = database
        self._in_handler = 0
        self._pauses = 0

    @contextmanager
    def open(self) -> Iterator[None]:
        """From here on; one watch at a time."""
        global _watching
        _hook()
        with _lock:
            before, _watching = _watching, self
        sends = {name: getattr(socket.socket, name) for name in _SENDS}
        puts = Broker.put
        for name, original in sends.items():
            setattr(socket.socket, name, _watched_send(original))
        Broker.put = _watched_put(puts)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for name, original in sends.items():
                # What the class has only inherited must not become its own.
                if original is getattr(socket.socket.__bases__[0], name, None):
                    delattr(socket.socket, name)
                else:
                    setattr(socket.socket, name, original)
            Broker.put = puts  # type: ignore[method-assign]
            _watching = before

    @contextmanager
    def handling(self) -> Iterator[None]:
        """While a handler runs in its transaction."""
        self._in_handler += 1
        try:
            yield
        finally:
            self._in_handler -= 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While an effect runs, whose business is outside."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def note(self, what: str, to: str) -> None:
        """Something goes out, unless it is allowed or known."""
        if self._pauses or to in self._allow or to.rpartition(":")[0] in self._allow:
            return
        sighting = Sighting(what, to, _users_line())
        if sighting not in self.seen and len(self.seen) < 100:
            self.seen.append(sighting)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """One of Python's audit events."""
        match event:
            case "socket.connect" | "socket.sendto" | "socket.sendmsg":
                self.socket(args[0], args[1], "connects to" if event == "socket.connect" else "sends to")
            case "smtplib.connect" | "ftplib.connect" | "telnetlib.Telnet.open":
                self.note(
                    "sends mail through" if event.startswith("smtp") else "connects to",
                    f"{args[1]}:{args[2]}",
                )
            case "smtplib.send":
                self.note("sends mail through", str(getattr(args[0], "_host", "?")))
            case "urllib.Request":
                self.note("requests", str(args[0]))
            case _ if not self._in_handler:
                return
            case "open":
                self._opened(*args)
            case "subprocess.Popen" | "os.posix_spawn" | "os.system" | "os.exec":
                program = args[0] if isinstance(args[0], (str, bytes, os.PathLike)) else str(args[0])
                self.note("starts the program", os.fsdecode(program))
            case (
                "os.remove" | "os.rename" | "os.mkdir" | "os.rmdir" | "os.truncate" | "os.link" | "os.symlink"
            ):
                if not _harmless_caller():
                    self.note("changes the file", _path(args[0]))
            case "sqlite3.connect":
                path = _path(args[0])
                if path != ":memory:" and not self._is_own_file(path):
                    self.note("opens another database", path)

    def socket(self, sock: Any, address: Any, what: str) -> None:
        """Bytes or a connection to an address; None where the socket knows it."""
        try:
            if address is None:
                address = sock.getpeername()
            family = sock.family
            mine = "{}:{}".format(*sock.getsockname()[:2]) if family != socket.AF_UNIX else ""
        except OSError:
            return
        if family in (socket.AF_INET, socket.AF_INET6):
            host, port = address[0], address[1]
            # A server in this process that answers is the other end of what was seen already.
            answers = mine in {sighting.to for sighting in self.seen}
            if not answers and not self._is_own_server(host, port):
                self.note(what, f"{host}:{port}")
        elif family == socket.AF_UNIX and address and ".s.PGSQL." not in str(address):
            self.note(what, _path(address))

    def _opened(self, path: Any, mode: Any, flags: Any) -> None:
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & _WRITES)
        if not writes or isinstance(path, int):
            return
        name = _path(path)
        if name in ("/dev/null", os.devnull) or name.endswith((".pyc", ".lock")) or "__pycache__" in name:
            return
        if name not in self._allow and not _harmless_caller():
            self.note("writes the file", name)

    def _is_own_server(self, host: str, port: int) -> bool:
        if self._database.dialect == "sqlite":
            return False
        address = self._database.place.removeprefix("postgresql://").split("/", 1)[0]
        return any(_is_same(own, host, port) for own in address.split(","))

    def _is_own_file(self, path: str) -> bool:
        return (
            self._database.dialect == "sqlite"
            and Path(path).resolve() == Path(self._database._target).resolve()
        )


def _is_same(own: str, host: str, port: int) -> bool:
    name, _, given = own.rpartition(":") if ":" in own else (own, "", "5432")
    if int(given or 5432) != port:
        return False
    if name.strip("[]") == host:
        return True
    try:
        return host in {found[4][0] for found in socket.getaddrinfo(name or "localhost", port)}
    except OSError:
        return False


def _hook() -> None:
    """Once per process: an audit hook can't be taken away, so it asks whether anybody watches."""
    global _is_hooked
    with _lock:
        if not _is_hooked:
            sys.addaudithook(_audit)
            _is_hooked = True


def _audit(event: str, args: tuple[Any, ...]) -> None:
    watch = _watching
    if watch is not None:
        try:
            watch.audit(event, args)
        except Exception:
            # What is watched goes on, whatever an event's arguments are in this version of Python.
            return


def _watched_send(original: Any) -> Any:
    def send(self: Any, *args: Any, **words: Any) -> Any:
        watch = _watching
        if watch is not None:
            watch.socket(self, None, "sends to")
        return original(self, *args, **words)

    return send


def _watched_put(original: Any) -> Any:
    def put(self: Any, queue: str, *messages: Any, **words: Any) -> Any:
        watch = _watching
        if watch is not None and watch._in_handler:
            watch.note("puts a message on the queue", queue)
        return original(self, queue, *messages, **words)

    return put


def _path(given: Any) -> str:
    return os.fsdecode(given) if isinstance(given, (str, bytes, os.PathLike)) else str(given)


def _users_line() -> str:
    """The innermost line of the user's own code that led here."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            code = frame.f_code
            return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


def _harmless_caller() -> bool:
    """Logs, temporary files and imports: they are not what a handler is for."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if (
            frame.f_code.co_filename.endswith(_HARMLESS_CALLERS)
            or "importlib._bootstrap" in frame.f_code.co_filename
        ):
            return True
        frame = frame.f_back
    return False


def noticed(what: str, to: str) -> None:
    """For test doubles: a handler that is being watched would have done this to the outside."""
    if _watching is not None and _watching._in_handler:
        _watching.note(what, to)
