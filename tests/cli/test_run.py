"""`oncebox run` in one process: it drains on the first signal and stops at once on the second."""

import json
import signal
from pathlib import Path

import pytest

from oncebox import Message, __version__
from tests.cli.kit import Running, oncebox
from tests.cli.shops import Shop, open_shop
from tests.waiting import eventually_async

TERM, INT = signal.SIGTERM, signal.SIGINT
AT_ONCE = 40
"""Seconds: less than a drain takes where a handler does not go on, and not less than a slow machine needs."""


async def _runs(shop: Shop, *words: str) -> Running:
    running = Running("shop:app", *words, cwd=shop.folder, env=shop.env)
    await running.says(f"oncebox {__version__} runs shop:app")
    return running


@pytest.mark.parametrize("handler", ["async", "sync"])
async def test_the_first_signal_finishes_what_is_in_hand_and_leaves_the_rest(
    database_url: str, tmp_path: Path, handler: str
) -> None:
    async with open_shop(tmp_path, database_url, handler=handler) as shop:
        shop.pay("evt-1", "evt-2", "evt-3")
        with await _runs(shop, "--json") as running:
            await eventually_async(lambda: shop.in_hand("evt-1"))
            await eventually_async(lambda: shop.queue.in_flight == 3)
            running.signal(TERM)
            await running.says("stopping: nothing more is received, what is in hand finishes")
            shop.go_on()
            assert await running.ends() == 0
        assert (shop.queue.acked, shop.queue.ready, shop.queue.in_flight) == (1, 2, 0)
        assert shop.queue.released == 2
        assert [await shop.state(name) for name in ("evt-1", "evt-2", "evt-3")] == ["done", "", ""]
        ended = json.loads(running.out)
        assert (ended["app"], ended["workers"], ended["ended"]) == ("shop:app", 1, "drained")
        assert await shop.workers() == set()


@pytest.mark.parametrize(("handler", "mode"), [("async", "inline"), ("sync", "inline"), ("async", "stored")])
async def test_the_second_signal_stops_at_once_and_counts_nothing(
    database_url: str, tmp_path: Path, handler: str, mode: str
) -> None:
    # A blocked thread keeps SQLite's only write lock to the end, so there nothing can be tidied up.
    tidies = handler == "async" or database_url.startswith("postgresql")
    async with open_shop(tmp_path, database_url, handler=handler, mode=mode) as shop:
        if tidies:
            with (tmp_path / "shop.py").open("a") as code:
                # Tidying up takes longer than that only where the machine does.
                code.write("\nimport oncebox.cli.stopping\noncebox.cli.stopping.AT_ONCE_SECONDS = 50\n")
        shop.pay("evt-1")
        with await _runs(shop) as running:
            await eventually_async(lambda: shop.in_hand("evt-1"))
            running.signal(INT)
            await running.says("stopping: nothing more")
            running.signal(INT)
            assert await running.ends(AT_ONCE) == 128 + INT
        if mode == "inline":
            assert (shop.queue.acked, shop.queue.ready) == (0, 1)
            assert await shop.state("evt-1") == ""
        else:
            message = await shop.message("evt-1")
            assert message is not None
            assert (message.state, message.attempts) == ("waiting", [])
        if tidies:
            assert "stopped at once" in running.log
            assert await shop.workers() == set()


async def test_a_handler_that_blocks_everything_is_left_behind(sqlite_url: str, tmp_path: Path) -> None:
    async with open_shop(tmp_path, sqlite_url, handler="blocking") as shop:
        shop.pay("evt-1")
        with await _runs(shop) as running:
            await eventually_async(lambda: shop.in_hand("evt-1"))
            running.signal(TERM)
            running.signal(INT)
            assert await running.ends(AT_ONCE) in (128 + TERM, 128 + INT)
        assert (shop.queue.acked, shop.queue.depth) == (0, 1)
        assert await shop.state("evt-1") == ""


@pytest.mark.parametrize("handler", ["async", "sync"])
async def test_usr1_tells_where_everything_is_and_ends_nothing(
    sqlite_url: str, tmp_path: Path, handler: str
) -> None:
    async with open_shop(tmp_path, sqlite_url, handler=handler) as shop:
        shop.pay("evt-1")
        with await _runs(shop) as running:
            await eventually_async(lambda: shop.in_hand("evt-1"))
            running.signal(signal.SIGUSR1)
            # What receives is a task in both; the handler is a task or a thread of its own.
            await running.says("Task receiving from payments:")
            await running.says('shop.py"')
            shop.go_on()
            await eventually_async(lambda: shop.queue.acked == 1)
            running.signal(TERM)
            assert await running.ends() == 0


async def test_stored_messages_are_received_by_one_process_and_handled_by_another(
    database_url: str, tmp_path: Path
) -> None:
    async with open_shop(tmp_path, database_url, mode="stored") as shop:
        shop.go_on()
        shop.pay("evt-1", "evt-2")
        with await _runs(shop, "--only", "sources") as running:
            await eventually_async(lambda: shop.queue.acked == 2)
            assert shop.in_hand("evt-1") is None
            running.signal(TERM)
            assert await running.ends() == 0
        shop.pay("evt-3")
        with await _runs(shop, "--only", "workers,relay") as running:
            await eventually_async(lambda: shop.in_hand("evt-1") and shop.in_hand("evt-2"))
            running.signal(TERM)
            assert await running.ends() == 0
        assert [await shop.state(name) for name in ("evt-1", "evt-2")] == ["done", "done"]
        assert (shop.queue.ready, shop.in_hand("evt-3")) == (1, None)


async def test_logs_are_json_lines_without_payloads_or_passwords(pg_url: str, tmp_path: Path) -> None:
    url = pg_url.replace("@", ":canary-password@")
    async with open_shop(tmp_path, url) as shop:
        code = (tmp_path / "shop.py").read_text()
        fails = code.replace('return {"paid"', 'raise ValueError("no\\nfunds"); return {"paid"')
        (tmp_path / "shop.py").write_text(
            fails + "import logging\nlogging.getLogger('mine').warning('a\\nb')\n"
        )
        shop.go_on()
        shop.pay("evt-1\nforged")
        with await _runs(shop, "--log-json", "--log-level", "debug") as running:
            await running.says("failed (ValueError at shop.py:")
            running.signal(TERM)
            assert await running.ends() == 0
        entries = [json.loads(line) for line in running.log.splitlines()]
        assert all(entry.keys() >= {"at", "level", "logger", "process", "message"} for entry in entries)
        assert {"mine": "a b"}.items() <= {entry["logger"]: entry["message"] for entry in entries}.items()
        assert any(entry["message"].startswith("consumer billing: message evt-1 forged") for entry in entries)
        about = [entry for entry in entries if "message_id" in entry]
        names = ("consumer", "message_id", "message_source", "message_type")
        assert {tuple(entry[name] for name in names) for entry in about} == {
            ("billing", "evt-1 forged", "", "payment")
        }
        assert "canary-password" not in running.log
        assert "amount" not in running.log


async def test_uvloop_runs_the_app_where_it_is_installed(sqlite_url: str, tmp_path: Path) -> None:
    async with open_shop(tmp_path, sqlite_url) as shop:
        with (tmp_path / "shop.py").open("a") as code:
            code.write(
                "\n@billing.handler('loop')\nasync def loop(body: dict) -> str:\n"
                "    return type(asyncio.get_running_loop()).__module__\n"
            )
        shop.memory.put("payments", Message(id="evt-1", type="loop", payload={}))
        with await _runs(shop) as running:
            await eventually_async(lambda: shop.queue.acked == 1)
            running.signal(TERM)
            assert await running.ends() == 0
        message = await shop.message("evt-1")
        assert message is not None
        assert message.result == "uvloop"


def test_the_app_may_be_named_by_option_or_environment(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from oncebox import App\napp = App('mysql://x')\n")
    by_option = oncebox("run", "--app", "shop:app", cwd=tmp_path)
    by_environment = oncebox("run", cwd=tmp_path, env={"ONCEBOX_APP": "shop:app"})
    for done in (by_option, by_environment):
        assert done.err.startswith("oncebox: unknown database scheme 'mysql'")
