"""The text message provider: a real HTTP server that honours idempotency keys, and hangs up now and then."""

from __future__ import annotations

import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

TROUBLE = 0.05
"""Calls that are carried out and not answered."""


class Provider:
    """Remembers every call. One key is one request, however often it is made."""

    def __init__(self, seed: int = 0) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        """(idempotency key, body) of everything that arrived."""
        self.requests: dict[str, str] = {}
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, key: str, body: dict[str, Any]) -> str | None:
        """The request's id; None where the caller will never hear of it."""
        with self._lock:
            self.calls.append((key, body))
            request = self.requests.setdefault(key, f"req-{len(self.requests) + 1}")
            return None if self._chance.random() < TROUBLE else request

    def __enter__(self) -> Provider:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(provider: Provider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            key = self.headers.get("Idempotency-Key", "")
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
            request = provider.take(key, body)
            if request is None:
                self.close_connection = True
                return
            answer = json.dumps({"request": request}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - its name is given
            """Nothing on standard error for every call."""

    return Handler
