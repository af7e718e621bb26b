"""One HTTP server for a process: applications side by side by path, on a socket that is bound beforehand.

Plain ASGI. What is served is put together elsewhere; this only finds the application for a path, and
starts and drains the server.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from oncebox.errors import ConfigError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

BACKLOG = 2048
INHERITED = "fd:"
"""An address of this form is a listening socket that was opened by somebody else."""


class Mounts:
    """ASGI applications by path prefix; the longest that fits has the request."""

    def __init__(self) -> None:
        self._apps: dict[str, Asgi] = {}

    def add(self, prefix: str, app: Asgi) -> None:
        """Serve `app` below `prefix` ("" for everything). ConfigError when the prefix is taken or malformed."""
        if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
            raise ConfigError(
                f"prefix {prefix!r}: it starts with a slash and ends without one, as in '/hooks'"
            )
        if prefix in self._apps:
            raise ConfigError(f"something is served at {prefix or '/'!r} already; choose another prefix")
        self._apps[prefix] = app

    def __contains__(self, prefix: object) -> bool:
        return prefix in self._apps

    def __bool__(self) -> bool:
        return bool(self._apps)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        path = str(scope["path"])
        root = str(scope.get("root_path", "")).rstrip("/")
        inner = path[len(root) :] if root and path.startswith(f"{root}/") else path
        for prefix in sorted(self._apps, key=len, reverse=True):
            if not prefix or inner == prefix or inner.startswith(f"{prefix}/"):
                await self._apps[prefix]({**scope, "root_path": root + prefix}, receive, send)
                return
        await nothing_here(scope, send)


async def lifespan(receive: Receive, send: Send) -> None:
    """Answer a server that announces start and end; there is nothing to do for either."""
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return


async def nothing_here(scope: Scope, send: Send) -> None:
    """404, or for a WebSocket a refusal."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
        return
    body = b'{"error": "nothing is served here"}'
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 404, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def listen(address: str) -> socket.socket:
    """A listening socket for `HOST:PORT`, `[::1]:PORT` or `fd:N`. ConfigError says what is wrong with it."""
    if address.startswith(INHERITED):
        return _inherited(address)
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address!r} is no address: write HOST:PORT, as in 127.0.0.1:8000")
    try:
        family, _, _, _, place = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        return socket.create_server(place[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"can't listen on {address}: {error.strerror or error}") from None


def _inherited(address: str) -> socket.socket:
    number = address.removeprefix(INHERITED)
    try:
        found = socket.socket(fileno=int(number))
        if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            found.detach()
            raise OSError("it is not a listening socket")
    except (OSError, ValueError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else "not a number"
        raise ConfigError(f"{address}: {reason}; a supervisor or systemd passes a listening socket") from None
    return found


def place_of(listening: socket.socket) -> str:
    """Where a socket listens, for people."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Serving:
    """A server at work."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def hurry(self) -> None:
        """Wait for no request that is in hand."""
        self._server.should_exit = self._server.force_exit = True


@asynccontextmanager
async def serving(
    app: Asgi, listening: socket.socket, *, drain_seconds: float, ended: Callable[[], None] = lambda: None
) -> AsyncIterator[Serving]:
    """Serve for the length of the block. At its end the socket is closed first, then what is in hand gets
    `drain_seconds` to be answered. `ended` is called when the server stops by itself."""
    server = _server(app, drain_seconds)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    task.add_done_callback(lambda _: ended())
    try:
        yield Serving(server)
    finally:
        server.should_exit = True
        await asyncio.shield(task)


def _server(app: Asgi, drain_seconds: float) -> Any:
    try:
        import uvicorn
    except ImportError:
        raise ConfigError("serving HTTP needs uvicorn: pip install 'oncebox[http]'") from None

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave signals alone: whoever runs the app says when to stop."""
            yield

    config = uvicorn.Config(
        app,
        # h11 is strict about what a request is and bounds its headers, which matters more here than speed.
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(drain_seconds)),
    )
    return Server(config)
