"""`oncebox run --workers N`: a parent that restarts, counts and stops its children."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.cli.kit import Running
from tests.cli.shops import Shop, open_shop
from tests.waiting import eventually_async

TERM, KILL = signal.SIGTERM, signal.SIGKILL


async def _runs(shop: Shop, *words: str) -> Running:
    running = Running("shop:app", "--workers", "2", *words, cwd=shop.folder, env=shop.env)
    await running.says("runs shop:app", times=2)
    return running


def _children(running: Running) -> list[psutil.Process]:
    return psutil.Process(running.process.pid).children()


def _gone(processes: list[psutil.Process]) -> bool:
    return not any(_runs_still(process) for process in processes)


def _runs_still(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False  # between the two questions


async def test_a_killed_child_is_restarted_and_its_message_counted_at_once(
    database_url: str, tmp_path: Path
) -> None:
    # Heartbeats lapse after two minutes here: only the parent can have counted this death.
    async with open_shop(tmp_path, database_url, mode="stored") as shop:
        with await _runs(shop) as running:
            shop.pay("evt-1")
            victim = await eventually_async(lambda: shop.in_hand("evt-1"))
            assert victim is not None
            (tmp_path / "pid-evt-1").unlink()
            os.kill(victim, KILL)
            await running.says(f"worker process {victim} was killed by SIGKILL; starting another")
            await running.says("what it had in hand is counted as a death")
            message = await shop.message("evt-1")
            assert message is not None
            assert [(a.died, a.error_type) for a in message.attempts] == [(True, "oncebox.ProcessDied")]
            again = await eventually_async(lambda: shop.in_hand("evt-1"))
            assert again != victim
            shop.go_on()
            await running.says("runs shop:app", times=3)
            await eventually_async(lambda: len(_children(running)) == 2)
            assert await shop.workers() == {child.pid for child in _children(running)}
            running.signal(TERM)
            assert await running.ends() == 0
        assert await shop.state("evt-1") == "done"
        assert await shop.workers() == set()


@pytest.mark.parametrize("who", ["parent", "everybody"])
async def test_a_signal_drains_all_children_whoever_else_gets_it(
    sqlite_url: str, tmp_path: Path, who: str
) -> None:
    async with open_shop(tmp_path, sqlite_url) as shop:
        with await _runs(shop, "--json") as running:
            shop.pay("evt-1")
            await eventually_async(lambda: shop.in_hand("evt-1"))
            # A service manager may signal every process of the service.
            for child in _children(running) if who == "everybody" else []:
                child.send_signal(TERM)
            running.signal(TERM)
            await running.says("stopping: nothing more is received", times=2)
            shop.go_on()
            assert await running.ends() == 0
        assert (shop.queue.acked, shop.queue.depth) == (1, 0)
        assert await shop.state("evt-1") == "done"
        assert '"ended": "drained"' in running.out


async def test_the_second_signal_stops_all_children_at_once_and_counts_nothing(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with open_shop(tmp_path, sqlite_url, mode="stored", handler="sync") as shop:
        with await _runs(shop) as running:
            shop.pay("evt-1")
            await eventually_async(lambda: shop.in_hand("evt-1"))
            children = _children(running)
            running.signal(TERM)
            await running.says("stopping: nothing more is received", times=2)
            running.signal(TERM)
            assert await running.ends() == 128 + TERM
            assert _gone(children)
        message = await shop.message("evt-1")
        assert message is not None
        assert (message.state, message.attempts) == ("waiting", [])


async def test_children_drain_when_their_parent_is_killed(sqlite_url: str, tmp_path: Path) -> None:
    async with open_shop(tmp_path, sqlite_url) as shop:
        with await _runs(shop) as running:
            shop.pay("evt-1")
            await eventually_async(lambda: shop.in_hand("evt-1"))
            children = _children(running)
            running.signal(KILL)
            await running.ends()
            await eventually_async(lambda: running.log.count("stopping: nothing more is received") == 2)
            shop.go_on()
            await eventually_async(lambda: _gone(children))
        assert (shop.queue.acked, await shop.state("evt-1")) == (1, "done")


async def test_children_that_can_not_start_are_not_started_again(sqlite_url: str, tmp_path: Path) -> None:
    async with open_shop(tmp_path, sqlite_url) as shop:
        code = (tmp_path / "shop.py").read_text()
        # The parent imports it first, and finds nothing wrong.
        (tmp_path / "shop.py").write_text(
            code + "if (HERE / 'imported').exists(): app.consumer('billing')\n(HERE / 'imported').touch()\n"
        )
        with Running("shop:app", "--workers", "2", cwd=tmp_path, env=shop.env) as running:
            assert await running.ends() == 2
        assert "consumer 'billing' exists already; one name, one consumer" in running.log
        assert running.log.splitlines()[-1] == (
            "oncebox: a worker process could not start; its own log line above says what to change"
        )
        assert "starting another" not in running.log
