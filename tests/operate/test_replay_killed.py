"""Replays that are killed at every step, and replays beside live traffic: each message once, all the same."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oncebox import Status
from tests.core.fixtures import inline, on
from tests.core.kit import Call, Shop
from tests.operate.replays import again, events, handled, projection, resets
from tests.servers import Postgres
from tests.waiting import eventually_async

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("origin", ["ledger", "file"])
@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_a_replay_killed_before_any_step_goes_on_and_doubles_nothing(
    engine: str, origin: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'page.db'}"
    if engine == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        url = postgres.create_database()
    words = [sys.executable, "-m", "tests.operate.replay_dying", url, *(["file"] if origin == "file" else [])]
    done = subprocess.run(words, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    came: dict[str, Any] = json.loads(done.stdout)
    assert len(came["steps"]) > 15
    assert came["steps"][-1]["through"]
    for each in came["steps"]:
        assert all(count == 1 for _, count in each["left"]), each
        assert each["then"] == [["m0", 1], ["m1", 1]], each
    assert came["runs"] == [["done", 2]]


async def test_live_messages_beside_a_rebuild_have_their_effect_once(shop: Shop) -> None:
    page = projection(shop)
    resets(shop, page)
    await handled(shop, page, events(10))

    async def live() -> None:
        for message in events(10, start=10):
            await shop.deliver(page, message)
            if shop.mode == "stored":
                await shop.work_off(page, slot=2)

    run, _ = await asyncio.gather(again(shop, page), live())
    assert run.handled >= 10
    assert shop.effects() == {f"evt-{n}": 1 for n in range(20)}


@inline
@on("psycopg", "asyncpg")
async def test_a_handler_that_is_at_work_when_a_rebuild_begins_is_not_replayed(shop: Shop) -> None:
    page, gate = shop.consumer("page", keep_payload="always", replay="rebuild"), shop.gate()

    @shop.handler(page)
    async def project(call: Call) -> None:
        await call.db.effect(call.message.id)
        if call.message.id == "evt-1" and not call.message.replay:
            await gate.wait()

    resets(shop, page)
    await shop.deliver(page, events(1)[0])
    late = asyncio.ensure_future(shop.deliver(page, events(2)[1]))
    await gate.reached_by_somebody()
    run = await again(shop, page)
    gate.open()
    await late
    assert run.handled == 1
    assert shop.effects() == {"evt-0": 1, "evt-1": 1}


@inline
@on("psycopg", "asyncpg")
async def test_a_handler_that_holds_what_the_reset_wants_and_the_rebuild_both_come_through(
    shop: Shop,
) -> None:
    page, gate = shop.consumer("page", keep_payload="always", replay="rebuild"), shop.gate()

    @shop.handler(page)
    async def project(call: Call) -> None:
        await call.db.effect(call.message.id)
        await call.db.run("UPDATE shop_effect SET note = 'touched' WHERE key = ?", "evt-0")
        if call.message.id == "evt-1" and not call.message.replay:
            await gate.wait()

    resets(shop, page)
    await shop.deliver(page, events(1)[0])
    late = asyncio.ensure_future(shop.deliver(page, events(2)[1]))
    await gate.reached_by_somebody()
    rebuild = asyncio.ensure_future(again(shop, page))
    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
    await eventually_async(lambda: shop.rows(waiting), 20)
    gate.open()
    run = await rebuild
    assert (await late).status is Status.PROCESSED
    assert run.handled in (1, 2), "whoever of the two was the deadlock's victim has run again"
    assert shop.effects() == {"evt-0": 1, "evt-1": 1}
