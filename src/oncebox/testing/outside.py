"""What leaves the process while a handler runs: connections, mail, requests, files, other programs.

Libraries that speak to the network below Python (libpq, librdkafka, gRPC, uvloop) are not seen here:
what they change in the user's own database shows in its rows.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from oncebox.drivers.database import Database
from oncebox.testing.wiretap import is_harmless, listening, users_line

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
SEEN_MAX = 100


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
        self.own_files: list[Sighting] = []
        """Connections of the handler's own to the app's SQLite file."""
        self._allow = frozenset(allow)
        self._database = database
        self._handlers = 0
        self._lives = 0
        self._pauses = 0

    @contextmanager
    def open(self) -> Iterator[None]:
        """Listen for the length of the block."""
        with listening(self):
            yield

    @contextmanager
    def living(self) -> Iterator[None]:
        """While deliveries are under way; what a handler has left to others is noted, too."""
        self._lives += 1
        try:
            yield
        finally:
            self._lives -= 1

    @contextmanager
    def handling(self) -> Iterator[None]:
        """While a handler runs in its transaction."""
        self._handlers += 1
        try:
            yield
        finally:
            self._handlers -= 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While an effect runs, whose business is outside."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def noticed(self, what: str, to: str) -> None:
        """A test double, or the in-process broker, was used."""
        if self._handlers:
            self._note(what, to)

    def _note(self, what: str, to: str) -> None:
        """Something goes out, unless it is allowed."""
        host = urlsplit(to).hostname if "://" in to else to.rpartition(":")[0]
        if not self._lives or self._pauses or to in self._allow or host in self._allow:
            return
        sighting = Sighting(what, to, users_line())
        if sighting not in self.seen and len(self.seen) < SEEN_MAX:
            self.seen.append(sighting)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """One of Python's audit events."""
        match event:
            case "socket.connect":
                self._socket(args[0], args[1], "connects to")
            case "socket.sendto" | "socket.sendmsg":
                self._socket(args[0], args[1], "sends to")
            case "smtplib.connect":
                self._note("sends mail through", f"{args[1]}:{args[2]}")
            case "smtplib.send":
                self._socket(args[0].sock, None, "sends mail through")
            case "urllib.Request":
                self._note("requests", str(args[0]))
            case "http.client.connect":
                self._note("connects to", f"{args[1]}:{args[2]}")
            case "http.client.send":
                self._note("sends to", f"{args[0].host}:{args[0].port}")
            case _ if self._handlers:
                self._local(event, args)

    def _local(self, event: str, args: tuple[Any, ...]) -> None:
        """Files and programs of this machine, touched inside a handler."""
        match event:
            case "open":
                self._opened(*args)
            case "subprocess.Popen" | "os.posix_spawn" | "os.system" | "os.exec":
                self._note("starts the program", _path(args[0]))
            case "os.fork" | "os.forkpty":
                self._note("starts", "another process")
            case (
                "os.remove" | "os.rename" | "os.mkdir" | "os.rmdir" | "os.truncate" | "os.link" | "os.symlink"
            ):
                if not is_harmless():
                    self._note("changes the file", _path(args[0]))
            case "sqlite3.connect":
                path = _path(args[0])
                if self._is_own_file(path):
                    self.own_files.append(Sighting("opens a connection of its own to", path, users_line()))
                elif path != ":memory:":
                    self._note("opens another database", path)

    def sent(self, sock: Any) -> None:
        """Bytes go out on a socket."""
        self._socket(sock, None, "sends to")

    def _socket(self, sock: Any, address: Any, what: str) -> None:
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
                self._note(what, f"{host}:{port}")
        elif family == socket.AF_UNIX and address and ".s.PGSQL." not in str(address):
            self._note(what, _path(address))

    def _opened(self, path: Any, mode: Any, flags: Any) -> None:
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & _WRITES)
        if not writes or isinstance(path, int):
            return
        name = _path(path)
        if name != os.devnull and "__pycache__" not in name and not is_harmless():
            self._note("writes the file", name)

    def _is_own_server(self, host: str, port: int) -> bool:
        if self._database.dialect == "sqlite":
            return False
        address = self._database.place.removeprefix("postgresql://").split("/", 1)[0]
        return any(_is_same(own, host, port) for own in address.split(","))

    def _is_own_file(self, path: str) -> bool:
        if self._database.dialect != "sqlite":
            return False
        plain = urlsplit(path).path if path.startswith("file:") else path
        return Path(plain).resolve() == Path(self._database._target).resolve()


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


def _path(given: Any) -> str:
    return os.fsdecode(given) if isinstance(given, (str, bytes, os.PathLike)) else str(given)
