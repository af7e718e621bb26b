"""The httpx transport against a real server on this machine."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from oncebox import Message
from oncebox.core.effects import Call
from oncebox.errors import UnknownEffect, UsageError
from oncebox.integrations.httpx import AsyncEffectTransport, EffectTransport, named


class Server:
    """Remembers keys; `/slow` never answers in time, `/drop` hangs up, `/500` says so."""

    def __init__(self) -> None:
        self.keys: list[str | None] = []
        self.release = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server.keys.append(self.headers.get("Idempotency-Key"))
                if self.path.startswith("/slow"):
                    server.release.wait(10)
                if self.path.startswith("/drop"):
                    self.close_connection = True
                    return
                self.send_response(int(self.path[1:4]) if self.path[1:4].isdigit() else 200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            do_GET = do_POST  # noqa: N815 - the base class's names

            def log_message(self, *args: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def call() -> Call:
    return Call("mailer", Message(id="evt-1"), "key-1", 1)


def patience(path: str) -> float:
    """Little, where no answer is expected."""
    return 0.3 if path.startswith("/slow") else 30.0


@pytest.fixture(params=["blocking", "awaiting"])
def post(request: pytest.FixtureRequest, server: Server) -> object:
    async def blocking(path: str, **words: object) -> httpx.Response:
        with httpx.Client(base_url=server.url, transport=EffectTransport(), timeout=patience(path)) as client:
            return client.post(path, **words)  # type: ignore[arg-type]  # noqa: ASYNC212

    async def awaiting(path: str, **words: object) -> httpx.Response:
        async with httpx.AsyncClient(
            base_url=server.url, transport=AsyncEffectTransport(), timeout=patience(path)
        ) as client:
            return await client.post(path, **words)  # type: ignore[arg-type]

    return blocking if request.param == "blocking" else awaiting


async def test_the_key_goes_along(server: Server, call: Call, post: object) -> None:
    assert callable(post)
    assert (await post("/charges", json={}, extensions=named(call))).status_code == 200
    await post("/charges", json={}, extensions=named(call, "fee"))
    await post("/charges", json={}, headers={"Idempotency-Key": "mine"})
    assert server.keys == ["key-1", "key-1-fee", "mine"]


@pytest.mark.parametrize("path", ["/slow?token=secret", "/drop", "/500", "/502", "/504"])
async def test_what_may_have_happened_is_unknown(server: Server, call: Call, post: object, path: str) -> None:
    assert callable(post)
    with pytest.raises(UnknownEffect, match="may have happened") as caught:
        await post(path, json={}, extensions=named(call))
    assert "secret" not in str(caught.value)
    assert server.keys == ["key-1"]


@pytest.mark.parametrize("path", ["/402", "/409", "/429", "/503"])
async def test_a_plain_refusal_is_an_answer(call: Call, post: object, path: str) -> None:
    assert callable(post)
    answer = await post(path, json={}, extensions=named(call))
    assert answer.status_code == int(path[1:])


def test_no_connection_is_no_call(call: Call) -> None:
    with httpx.Client(transport=EffectTransport()) as client, pytest.raises(httpx.ConnectError):
        client.post("http://127.0.0.1:1/x", extensions=named(call))


async def test_a_post_without_a_call_is_refused(server: Server, post: object) -> None:
    assert callable(post)
    with pytest.raises(UsageError, match=r"names no call: pass extensions=named\(call\)"):
        await post("/charges", json={})
    assert server.keys == []


def test_reading_needs_no_key(server: Server) -> None:
    with httpx.Client(base_url=server.url, transport=EffectTransport()) as client:
        assert client.get("/charges").status_code == 200
