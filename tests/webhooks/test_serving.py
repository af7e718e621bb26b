"""`oncebox run --http`, and webhooks inside somebody else's application."""

import asyncio
import os
import re
import shutil
import signal
import socket
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from fastapi import FastAPI

from oncebox.errors import ConfigError
from oncebox.runtime.http import Mounts, listen, place_of
from oncebox.schema import migrate
from oncebox.webhooks import Webhooks, standard
from tests.cli.kit import Running, oncebox
from tests.core.fixtures import inline, on
from tests.core.kit import Shop, effect
from tests.waiting import eventually_async
from tests.webhooks.kit import BODY, SECRET, served, signed_standard

SHOP = """\
import os
import time
from pathlib import Path

from oncebox import App, Message
from oncebox.webhooks import Webhooks, standard

HERE = Path(__file__).parent
app = App(os.environ["SHOP_URL"], drain_seconds=60)
billing = app.consumer("billing", mode=os.environ.get("SHOP_MODE", "inline"), timeout_seconds=60)


@billing.handler("payment")
def paid(payment: dict, message: Message) -> None:
    with (HERE / "effects").open("a") as file:
        file.write(f"{message.id} {os.getpid()}\\n")
    while payment.get("waits") and not (HERE / "go").exists():
        time.sleep(0.01)


hooks = Webhooks(app, prefix="/hooks")
hooks.add("/payments", billing, verify=standard(os.environ["SECRET"]))
"""


def shop_in(folder: Path, url: str, mode: str = "inline") -> dict[str, str]:
    (folder / "shop.py").write_text(SHOP)
    migrate(url)
    return {"SHOP_URL": url, "SHOP_MODE": mode, "SECRET": SECRET}


def effects(folder: Path) -> list[str]:
    file = folder / "effects"
    return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


async def address(running: Running, times: int = 1) -> str:
    await running.says("serving http://", times)
    found = re.search(r"serving (http://\S+)", running.log)
    assert found is not None
    return found[1]


async def post(client: httpx.AsyncClient, name: str, body: bytes = BODY) -> httpx.Response:
    headers = signed_standard(body, name=name)
    return await client.post("/hooks/payments", content=body, headers=headers)


@pytest.mark.parametrize(("engine", "mode"), [("sqlite_url", "inline"), ("pg_url", "stored")])
async def test_run_serves_webhooks_and_drains_what_is_in_hand(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str, mode: str
) -> None:
    env = shop_in(tmp_path, request.getfixturevalue(engine), mode)
    with Running("shop:app", "--http", "127.0.0.1:0", cwd=tmp_path, env=env) as running:
        async with httpx.AsyncClient(base_url=await address(running), timeout=60) as client:
            answers = [await post(client, "evt-1") for _ in range(5)]
            assert {answer.status_code for answer in answers} <= {200, 202}
            await eventually_async(lambda: effects(tmp_path) == ["evt-1"])
            assert (await client.get("/")).status_code == 404
            waiting = b'{"type": "payment", "waits": true}'
            held = asyncio.create_task(post(client, "evt-2", waiting))
            await eventually_async(lambda: len(effects(tmp_path)) == 2, 30)
            running.signal(signal.SIGTERM)
            await running.says("stopping: nothing more is received")
            (tmp_path / "go").touch()
            assert (await held).is_success
        assert await running.ends() == 0
    assert effects(tmp_path) == ["evt-1", "evt-2"]


async def curl(url: str, body: Path, headers: dict[str, str]) -> int:
    """What a sender's own tool is answered."""
    named = [word for pair in headers.items() for word in ("-H", ": ".join(pair))]
    command = [
        "curl",
        "-sS",
        "-o",
        os.devnull,
        "-w",
        "%{http_code}",
        "--data-binary",
        f"@{body}",
        *named,
        url,
    ]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return int(said)


@pytest.mark.skipif(shutil.which("curl") is None and not os.environ.get("CI"), reason="there is no curl")
async def test_curl_five_times_is_five_times_2xx_and_one_effect_and_a_flipped_bit_leaves_no_row(
    sqlite_url: str, tmp_path: Path
) -> None:
    env = shop_in(tmp_path, sqlite_url)
    headers = {**signed_standard(BODY, name="evt-1"), "content-type": "application/json"}
    flipped = bytearray(BODY)
    flipped[-2] ^= 1
    (tmp_path / "body").write_bytes(BODY)
    (tmp_path / "flipped").write_bytes(flipped)
    with Running("shop:app", "--http", "127.0.0.1:0", cwd=tmp_path, env=env) as running:
        url = f"{await address(running)}/hooks/payments"
        assert await curl(url, tmp_path / "flipped", headers) == 401
        with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as database:
            assert database.execute("SELECT count(*) FROM oncebox_ledger").fetchone() == (0,)
        assert [await curl(url, tmp_path / "body", headers) for _ in range(5)] == [200] * 5
        running.signal(signal.SIGTERM)
        assert await running.ends() == 0
    assert effects(tmp_path) == ["evt-1"]


async def test_worker_processes_share_the_port_and_one_that_is_killed_is_not_missed(
    pg_url: str, tmp_path: Path
) -> None:
    env = shop_in(tmp_path, pg_url)
    with Running("shop:app", "--http", "127.0.0.1:0", "--workers", "2", cwd=tmp_path, env=env) as running:
        url = await address(running, times=2)

        async def pay(name: str, body: bytes = BODY) -> int:
            # A connection each: a new one may go to any process.
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                return (await post(client, name, body)).status_code

        assert set(await asyncio.gather(*(pay(f"evt-{n % 10}") for n in range(30)))) == {200}
        assert sorted(effects(tmp_path)) == sorted(f"evt-{n}" for n in range(10))
        waiting = b'{"type": "payment", "waits": true}'
        held = asyncio.create_task(pay("held", waiting))
        await eventually_async(lambda: "held" in effects(tmp_path), 30)
        os.kill(int((tmp_path / "effects").read_text().split()[-1]), signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await held  # no 2xx for what was not committed
        await running.says("was killed by SIGKILL; starting another")
        (tmp_path / "go").touch()
        assert [await pay("held", waiting), await pay("held", waiting)] == [200, 200], "the other one serves"
        assert [await pay(f"more-{n}") for n in range(5)] == [200] * 5
        running.signal(signal.SIGTERM)
        assert await running.ends() == 0
        with pytest.raises(httpx.ConnectError):
            await pay("late")
    with psycopg.connect(pg_url) as database:
        rows = database.execute("SELECT message_id FROM oncebox.ledger ORDER BY 1").fetchall()
    names = [*(f"evt-{n}" for n in range(10)), "held", *(f"more-{n}" for n in range(5))]
    assert [name for (name,) in rows] == sorted(names)


def test_a_port_that_is_taken_is_told(sqlite_url: str, tmp_path: Path) -> None:
    env = shop_in(tmp_path, sqlite_url)
    with listen("127.0.0.1:0") as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        done = oncebox("run", "shop:app", "--http", place, cwd=tmp_path, env=env)
        assert (done.code, f"can't listen on {place}: Address already in use" in done.err) == (2, True)


@pytest.mark.parametrize("given", ["8000", ":8000", "127.0.0.1:", "127.0.0.1:99999", "a:b", "fd:x", "fd:99"])
def test_what_is_no_address_is_told(given: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(given)):
        listen(given)


def test_an_inherited_socket_is_taken_and_one_that_does_not_listen_is_not() -> None:
    with listen("127.0.0.1:0") as ours, listen(f"fd:{os.dup(ours.fileno())}") as theirs:
        assert theirs.getsockname() == ours.getsockname()
    with socket.socket() as idle, pytest.raises(ConfigError, match="not a listening socket"):
        listen(f"fd:{idle.fileno()}")


def test_an_ipv6_address_is_said_as_one() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with listen("[::1]:0") as listening:
        assert place_of(listening).startswith("http://[::1]:")


@on("sqlite")
@inline
async def test_mounted_in_fastapi_it_is_found_below_its_prefix(shop: Shop) -> None:
    shop.handler(billing := shop.consumer())(effect)
    hooks = Webhooks(shop.app)
    hooks.add("/payments", billing, verify=standard(SECRET))
    api = FastAPI()

    @api.get("/health")
    def health() -> str:
        return "fine"

    api.mount("/hooks", hooks)
    async with served(api) as client:
        assert (await client.get("/health")).json() == "fine"
        assert (await post(client, "evt-1")).status_code == 200
        assert (await client.post("/payments", content=BODY)).status_code == 404
        assert (await client.get("/hooks/other")).status_code == 404
    assert shop.effects() == {"evt-1": 1}


async def test_the_longest_prefix_has_the_request() -> None:
    def says(text: str) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            body = f"{text} {scope['root_path']}".encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})

        return app

    mounts = Mounts()
    for prefix in ("/a", "/a/b", "/c"):
        mounts.add(prefix, says(prefix))
    async with served(mounts) as client:
        got = {path: (await client.get(path)).text for path in ("/a", "/a/x", "/a/b", "/a/b/c", "/c/", "/ab")}
    assert got == {
        "/a": "/a /a",
        "/a/x": "/a /a",
        "/a/b": "/a/b /a/b",
        "/a/b/c": "/a/b /a/b",
        "/c/": "/c /c",
        "/ab": '{"error": "nothing is served here"}',
    }
    for prefix in ("a", "/a/", "/a"):
        with pytest.raises(ConfigError):
            mounts.add(prefix, says("x"))
