"""The guard inside the user's own transaction."""

from __future__ import annotations

from typing import Any

from benchmarks.contenders import handmade_asyncpg, handmade_psycopg, handmade_psycopg_async
from benchmarks.contenders.base import Contender
from benchmarks.contenders.handmade_asyncpg import HandmadeAsyncpg
from benchmarks.contenders.handmade_psycopg import HandmadePsycopg
from benchmarks.contenders.handmade_psycopg_async import HandmadePsycopgAsync
from oncebox import Inbox, Message

inbox = Inbox("bench-guard")


def guarded(conn: Any, message: Message) -> None:
    """What a psycopg user writes: the first statement opens the transaction."""
    once = inbox.once(conn, message.id, source=message.source, type=message.type, payload=message.payload)
    with once as claim:
        if claim.first:
            handmade_psycopg.effect(conn, message)
    conn.commit()


def guarded_block(conn: Any, message: Message) -> None:
    """The same with a block of psycopg's own, which has sent BEGIN before anybody else can."""
    once = inbox.once(conn, message.id, source=message.source, type=message.type, payload=message.payload)
    with conn.transaction(), once as claim:
        if claim.first:
            handmade_psycopg.effect(conn, message)


async def guarded_async(conn: Any, message: Message) -> None:
    """What an asyncpg user writes."""
    once = inbox.once(conn, message.id, source=message.source, type=message.type, payload=message.payload)
    async with conn.transaction(), once as claim:
        if claim.first:
            await handmade_asyncpg.effect(conn, message)


async def guarded_psycopg_async(conn: Any, message: Message) -> None:
    """What a user of psycopg's async connections writes."""
    once = inbox.once(conn, message.id, source=message.source, type=message.type, payload=message.payload)
    async with once as claim:
        if claim.first:
            await handmade_psycopg_async.effect(conn, message)
    await conn.commit()


def alone(driver: str) -> Contender:
    """The transaction that the guard joins, without it."""
    if driver == "asyncpg":
        return HandmadeAsyncpg("unprotected_block")
    return (
        HandmadePsycopgAsync("unprotected") if driver == "psycopg-async" else HandmadePsycopg("unprotected")
    )


def guard(driver: str) -> Contender:
    """The guard as a contender: the same loop and connections as without it."""
    contender = alone(driver)
    contender.label = "guard"
    if isinstance(contender, HandmadePsycopg):
        contender._flow = guarded
    elif isinstance(contender, HandmadePsycopgAsync):
        contender._flow = guarded_psycopg_async
    elif isinstance(contender, HandmadeAsyncpg):
        contender._flow = guarded_async
    return contender


def block_alone(driver: str) -> Contender:
    """The same with psycopg's own block."""
    return HandmadePsycopg("unprotected_block", autocommit=True)


def guard_block(driver: str) -> Contender:
    """The guard inside psycopg's own block."""
    contender = HandmadePsycopg("unprotected_block", autocommit=True)
    contender.label = "guard in a block"
    contender._flow = guarded_block
    return contender
