"""The guard inside the user's own transaction."""

from __future__ import annotations

from typing import Any

from benchmarks.contenders import handmade_asyncpg, handmade_psycopg
from benchmarks.contenders.handmade_asyncpg import HandmadeAsyncpg
from benchmarks.contenders.handmade_psycopg import HandmadePsycopg
from benchmarks.load import Load
from benchmarks.stage import Place
from oncebox import Inbox, Message

inbox = Inbox("bench-guard")


def guarded(conn: Any, message: Message) -> None:
    """What a psycopg user writes."""
    with (
        conn.transaction(),
        inbox.once(
            conn, message.id, source=message.source, type=message.type, payload=message.payload
        ) as claim,
    ):
        if claim.first:
            handmade_psycopg.effect(conn, message)


async def guarded_async(conn: Any, message: Message) -> None:
    """What an asyncpg user writes."""
    async with (
        conn.transaction(),
        inbox.once(
            conn, message.id, source=message.source, type=message.type, payload=message.payload
        ) as claim,
    ):
        if claim.first:
            await handmade_asyncpg.effect(conn, message)


def guard(driver: str, concurrency: int = 1, load: Load | None = None) -> HandmadePsycopg | HandmadeAsyncpg:
    """The guard as a contender: the same loop and connections as without it."""
    if driver == "asyncpg":
        contender: HandmadePsycopg | HandmadeAsyncpg = HandmadeAsyncpg("unprotected_block", concurrency, load)
        contender._flow = guarded_async
    else:
        contender = _Guarded("unprotected_block", concurrency, load)
        contender._flow = guarded
    contender.label = "guard"
    return contender


class _Guarded(HandmadePsycopg):
    async def open(self, stage: Place) -> None:
        self.label = "unprotected_block"
        await super().open(stage)
        self.label = "guard"
