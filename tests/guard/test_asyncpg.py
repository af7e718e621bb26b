"""What only asyncpg has: pools that take a connection back, and record classes."""

# ruff: noqa: PT012 - the block is what is tested

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from oncebox import errors
from oncebox.inbox import Inbox

INBOX = Inbox("billing")


async def test_connection_given_back_to_the_pool_inside_the_block_is_caught(guard_pg_url: str) -> None:
    async with asyncpg.create_pool(guard_pg_url, min_size=1, max_size=1) as pool:
        connection = await pool.acquire()
        transaction = connection.transaction()
        await transaction.start()
        with pytest.raises(errors.TransactionEnded):
            async with INBOX.once(connection, "evt-1") as claim:
                assert claim.first
                await transaction.commit()
                await pool.release(connection)


async def test_record_classes_are_the_users_own(guard_pg_url: str) -> None:
    class Mine(asyncpg.Record):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            return self[name]

    connection = await asyncpg.connect(guard_pg_url, record_class=Mine)
    for first in (True, False):
        async with connection.transaction(), INBOX.once(connection, "evt-1", payload=b"x") as claim:
            assert claim.first is first
    await connection.close()


async def test_coroutine_that_is_closed_inside_the_block_ends_quietly(guard_pg_url: str) -> None:
    connection = await asyncpg.connect(guard_pg_url)
    reached = asyncio.Event()

    async def handler() -> None:
        async with INBOX.once(connection, "evt-1") as claim:
            assert claim.first
            reached.set()
            await asyncio.Event().wait()

    transaction = connection.transaction()
    await transaction.start()
    coroutine = handler()
    waiting = coroutine.send(None)
    while not reached.is_set():
        await asyncio.wait([waiting])
        waiting._asyncio_future_blocking = False
        waiting = coroutine.send(None)
    coroutine.close()
    await transaction.rollback()
    await connection.close()
