"""A task that waits for SQLite's write lock and is cancelled just as it gets it must end, not go on."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from oncebox.core.steps import Begin
from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings
from oncebox.drivers.sqlalchemy.sqlite import _roll_back
from oncebox.drivers.sqlalchemy.turn import Turn
from oncebox.schema import migrate


@pytest.mark.parametrize("later", range(6))
async def test_cancellation_that_comes_with_the_lock_is_not_forgotten(tmp_path: Path, later: int) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    migrate(url)
    database = Database(url)
    holder, waiter = [await database.connect_async(Settings()) for _ in range(2)]
    await holder.begin(Begin("holder"))
    waits = asyncio.Event()

    async def wait() -> None:
        waits.set()
        await waiter.begin(Begin("waiter"))
        await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await waits.wait()
    released = holder.rollback()
    if released is not None:
        await released
    for _ in range(later):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=20)
    assert task.cancelled(), "the cancellation was forgotten"
    for session in (holder, waiter):
        closed = session.close()
        if closed is not None:
            await closed


@pytest.mark.parametrize("later", range(6))
async def test_the_same_where_sqlalchemy_has_the_connection(tmp_path: Path, later: int) -> None:
    holder, waiter = (Turn(str(tmp_path / "shop.db"), 10.0) for _ in range(2))
    await holder.take_async()

    async def wait() -> None:
        await waiter.take_async()
        await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    holder.release()
    for _ in range(later):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=20)
    assert task.cancelled(), "the cancellation was forgotten"
    waiter.release()


def test_connection_that_was_interrupted_with_a_cursor_open_gives_its_lock_back(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    raw, other = (sqlite3.connect(path, isolation_level=None, timeout=0) for _ in range(2))
    raw.execute("CREATE TABLE t AS SELECT 1 AS n UNION SELECT 2")
    raw.execute("BEGIN IMMEDIATE")
    cursor = raw.execute("SELECT n FROM t")
    cursor.fetchone()
    raw.interrupt()
    _roll_back(raw)
    assert not raw.in_transaction
    other.execute("INSERT INTO t VALUES (3)")
    assert other.execute("SELECT count(*) FROM t").fetchone() == (3,)
    for each in (raw, other):
        each.close()
