"""`oncebox status`: figures per consumer, who is alive, once or kept on the screen."""

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from oncebox import App, Dead, Message
from oncebox.brokers.memory import Memory
from oncebox.schema import migrate
from tests.cli.kit import COMMAND, Running, environment, oncebox
from tests.cli.shops import open_shop
from tests.servers import Postgres
from tests.waiting import eventually, eventually_async


async def _work(url: str) -> None:
    """Let an app run until it has dealt with everything: one message dies, one fails, three are repeated."""
    memory = Memory()
    app = App(url)
    billing = app.consumer("billing", memory.queue("payments"))
    later = app.consumer("later", mode="stored", unknown_type_seconds=3600)

    @billing.handler("payment")
    async def pay(payment: dict[str, int]) -> None:
        if payment["amount"] < 0:
            raise Dead("a negative amount")

    @later.handler("known")
    async def known(body: dict[str, int]) -> None: ...

    for n in range(5):
        payment = Message(id=f"evt-{n}", type="payment", payload={"amount": n})
        memory.put("payments", payment, duplicates=int(n < 3))
    memory.put("payments", Message(id="minus", type="payment", payload={"amount": -1}))
    memory.put("payments", Message(id="evt-0", type="payment", payload={"amount": 77}))
    async with app.running():
        await memory.drained()
        await later.process(Message(id="evt-9", type="unknown to this deployment", payload={}))
    await app.aclose()


@pytest.fixture
def worked(database_url: str) -> str:
    """A database after some work."""
    migrate(database_url)
    asyncio.run(_work(database_url))
    return database_url


def test_figures_per_consumer(worked: str, tmp_path: Path) -> None:
    report = oncebox("status", "--database", worked, "--json", cwd=tmp_path).json()
    billing, later = report["consumers"]
    assert (billing["consumer"], later["consumer"]) == ("billing", "later")
    assert billing["dead"] == {"conflict": 1, "terminal": 1}
    assert (billing["processed"], billing["duplicates"], billing["waiting"]) == (5, 3, 0)
    assert 5 / 301 < billing["processed_per_second"] < 5 / 239
    assert billing["outcomes"] == {"processed": 5, "duplicate": 3, "dead": 2}
    assert (later["waiting"], later["retrying"], later["working"], later["dead"]) == (1, 0, 0, {})
    assert 0 <= later["oldest_seconds"] < 100
    assert report["workers"] == []
    assert "@" not in report["database"]


def test_the_same_as_a_table(worked: str, tmp_path: Path) -> None:
    done = oncebox("status", "--database", worked, cwd=tmp_path)
    assert done.code == 0, done.err
    row = next(line for line in done.out.splitlines() if "billing" in line)
    cells = [cell.strip() for cell in row.strip("│┃ ").split("│")]
    assert cells == ["billing", "0", "-", "0", "0", "conflict 1, terminal 1", "5 (0.0/s)", "2", "3", "6"]
    assert "No worker process is running: oncebox run module:app starts one." in done.out


def test_an_empty_database_and_an_idle_consumer(sqlite_url: str, tmp_path: Path) -> None:
    migrate(sqlite_url)
    empty = oncebox("status", "--database", sqlite_url, cwd=tmp_path)
    assert "No consumer has been here yet." in empty.out
    (tmp_path / "shop.py").write_text(
        f"from oncebox import App\napp = App({sqlite_url!r})\napp.consumer('idle [bold]x')\n"
    )
    by_app = oncebox("status", "--app", "shop:app", cwd=tmp_path)
    assert "idle [bold]x" in by_app.out


async def test_what_is_in_hand_is_working(database_url: str, tmp_path: Path) -> None:
    async with open_shop(tmp_path, database_url, mode="stored") as shop:
        shop.pay("evt-1", "evt-2")
        with Running("shop:app", cwd=tmp_path, env=shop.env) as running:
            pid = await eventually_async(lambda: shop.in_hand("evt-1") or shop.in_hand("evt-2"), 30)
            await eventually_async(lambda: shop.queue.acked == 2)
            # Told by the app when a heartbeat has lapsed: on SQLite a handler keeps it from being written.
            words = ("status", "--app", "shop:app", "--json")
            report = (await asyncio.to_thread(oncebox, *words, cwd=tmp_path, env=shop.env)).json()
            (worker,) = report["workers"]
            assert (worker["pid"], worker["in_hand"], worker["alive"]) == (pid, 1, True)
            (billing,) = report["consumers"]
            assert (billing["waiting"], billing["working"]) == (1, 1)
            states = {await shop.state(name) for name in ("evt-1", "evt-2")}
            assert states == {"working", "waiting"}
            shop.go_on()
            await eventually_async(lambda: shop.in_hand("evt-1") and shop.in_hand("evt-2"))
            running.signal(signal.SIGTERM)
            assert await running.ends() == 0


def test_watching_keeps_the_screen_up_to_date(worked: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    env = {**environment(), "TERM": "xterm", "COLUMNS": "140", "LINES": "40"}
    command = [*COMMAND, "status", "--watch", "--interval", "0.1", "--database", worked]
    watching = subprocess.Popen(command, cwd=tmp_path, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.set_blocking(ours, False)
    seen = ""

    def shows(text: str, times: int) -> bool:
        nonlocal seen
        with contextlib.suppress(BlockingIOError):
            seen += os.read(ours, 65536).decode(errors="replace")
        assert watching.poll() is None, seen
        return seen.count(text) >= times

    try:
        eventually(lambda: shows("conflict 1, terminal 1", 3), 30)
        eventually(lambda: shows("per second, since the last look", 1), 30)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=20) == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(ours)


def _started(command: list[str], cwd: Path, out: Path) -> subprocess.Popen[bytes]:
    with out.open("wb") as output:
        return subprocess.Popen(command, cwd=cwd, env=environment(), stdout=output, stderr=output)


async def test_watching_as_json_outlives_the_database(disposable_postgres: Postgres, tmp_path: Path) -> None:
    url = disposable_postgres.create_database()
    await asyncio.to_thread(migrate, url)
    out = tmp_path / "out"
    command = [*COMMAND, "status", "--watch", "--json", "--interval", "0.1", "--database", url]
    watching = _started(command, tmp_path, out)

    def documents() -> list[dict[str, object]]:
        return [json.loads(line) for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def problems() -> list[object]:
        return [document["problem"] for document in documents()]

    try:
        await eventually_async(lambda: None in problems(), 30)
        await asyncio.to_thread(disposable_postgres.stop)
        await eventually_async(lambda: any(problems()), 30)
        assert {"rates", "keys", "consumers"} <= documents()[-1].keys()
        lost = len(documents())
        await asyncio.to_thread(disposable_postgres.start)
        await eventually_async(lambda: None in problems()[lost:], 30)
        watching.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(watching.wait, 20) == 0
    finally:
        watching.kill()
        watching.wait()
