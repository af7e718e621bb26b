"""Where a process can be listened to: Python's audit events, and the methods that send bytes.

Audit events tell of connections, files and programs. Bytes that go out on a connection that was open
before have none, so sending is tapped at the socket itself, and at the in-process broker.
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from oncebox.brokers.memory import Memory
from oncebox.testing.lines import is_users

_TAPPED = [
    *((socket.socket, name) for name in ("send", "sendall", "sendto", "sendmsg")),
    *((ssl.SSLSocket, name) for name in ("send", "sendall", "write")),
]
_HARMLESS = ("/logging/__init__.py", "/logging/handlers.py", "/tempfile.py")
_lock = threading.Lock()
_is_hooked = False
_listener: Listener | None = None


class Listener(Protocol):
    """Whoever is told."""

    def audit(self, event: str, args: tuple[Any, ...]) -> None: ...
    def sent(self, sock: Any) -> None: ...
    def noticed(self, what: str, to: str) -> None: ...


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener` for the length of the block; one at a time."""
    global _listener
    _hook()
    with _lock:
        before, _listener = _listener, listener
        own = [(kind, name, vars(kind).get(name)) for kind, name in _TAPPED]
        for kind, name, _ in own:
            setattr(kind, name, _tapped_send(getattr(kind, name)))
        put = Memory.put
        Memory.put = _tapped_put(put)  # type: ignore[method-assign]
    try:
        yield
    finally:
        with _lock:
            for kind, name, original in own:
                # What the class had only inherited must not become its own.
                if original is None:
                    delattr(kind, name)
                else:
                    setattr(kind, name, original)
            Memory.put = put  # type: ignore[method-assign]
            _listener = before


def noticed(what: str, to: str) -> None:
    """For test doubles: the handler would have done this to the outside."""
    if _listener is not None:
        _listener.noticed(what, to)


def _hook() -> None:
    """Once per process: an audit hook can't be taken away, so it asks whether anybody listens."""
    global _is_hooked
    with _lock:
        if not _is_hooked:
            sys.addaudithook(_audit)
            _is_hooked = True


def _audit(event: str, args: tuple[Any, ...]) -> None:
    listener = _listener
    if listener is not None:
        try:
            listener.audit(event, args)
        except Exception:
            # What is listened to goes on, whatever an event's arguments are in this version of Python.
            return


def _tapped_send(original: Any) -> Any:
    def send(self: Any, *args: Any, **words: Any) -> Any:
        listener = _listener
        if listener is not None:
            listener.sent(self)
        return original(self, *args, **words)

    return send


def _tapped_put(original: Any) -> Any:
    def put(self: Any, queue: str, *messages: Any, **words: Any) -> Any:
        noticed("puts a message on the queue", queue)
        return original(self, queue, *messages, **words)

    return put


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_line() -> str:
    """The innermost line of the user's own code that led here."""
    for frame in _frames():
        code = frame.f_code
        if is_users(code.co_filename):
            return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
    return ""


def is_harmless() -> bool:
    """Logs, temporary files and imports lead here: they are not what a handler is for."""
    return any(
        frame.f_code.co_filename.endswith(_HARMLESS) or "importlib._bootstrap" in frame.f_code.co_filename
        for frame in _frames()
    )
