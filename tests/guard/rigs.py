"""Every kind of handle, behind one face, so that one suite can be run on all of them.

A rig opens transactions as its users would. Blocking handles block the event loop; that is fine here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from inspect import isawaitable
from typing import Any, ClassVar

import psycopg

from oncebox.inbox import Claim, Inbox
from oncebox.message import Message


async def settle(reply: Any) -> Any:
    """The reply, awaited where it has to be."""
    return await reply if isawaitable(reply) else reply


class Desk:
    """One open transaction: the handle, and how its owner uses it."""

    def __init__(self, handle: Any, awaits: bool, run: Callable[[str], Any], own_commit: bool = True) -> None:
        self.handle = handle
        self.awaits = awaits
        self.own_commit = own_commit
        """Whether `handle.commit()` ends the transaction; else only raw SQL does."""
        self._run = run

    async def run(self, sql: str) -> None:
        """A statement of the user's own."""
        await settle(self._run(sql))

    async def commit(self) -> None:
        await settle(self.handle.commit())

    @asynccontextmanager
    async def once(self, inbox: Inbox, message_id: str, **words: Any) -> AsyncIterator[Claim]:
        """The right kind of block for this handle."""
        block: Any = inbox.once(self.handle, message_id, **words)
        if self.awaits:
            async with block as claim:
                yield claim
        else:
            with block as claim:
                yield claim

    async def claim_many(self, inbox: Inbox, messages: list[Message]) -> list[Claim]:
        claims: list[Claim] = await settle(inbox.claim_many(self.handle, messages))
        return claims

    async def resolve(self, inbox: Inbox, message_id: str, *, done: bool) -> None:
        await settle(inbox.resolve(self.handle, message_id, done=done))


class Rig:
    """A kind of handle, and the database it reaches."""

    name: ClassVar[str]
    engine: ClassVar[str]
    awaits: ClassVar[bool] = False

    def __init__(self, url: str) -> None:
        self.url = url
        """`postgresql://…`, or the path of a SQLite file."""

    def transaction(self) -> AbstractAsyncContextManager[Desk]:
        """A transaction as users of this handle open one: committed, or rolled back by an error."""
        raise NotImplementedError

    def autocommit(self) -> AbstractAsyncContextManager[Desk]:
        """A handle that commits every statement."""
        raise NotImplementedError

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What is committed, as a stranger sees it."""
        if self.engine == "sqlite":
            with closing(sqlite3.connect(self.url)) as reader:
                return reader.execute(sql.replace("oncebox.", "oncebox_")).fetchall()
        with psycopg.connect(self.url) as stranger:
            return stranger.execute(sql.encode()).fetchall()

    def write(self, sql: str) -> None:
        """Commit something behind the handle's back."""
        if self.engine == "sqlite":
            with closing(sqlite3.connect(self.url)) as stranger:
                stranger.execute(sql.replace("oncebox.", "oncebox_"))
                stranger.commit()
        else:
            with psycopg.connect(self.url) as connection:
                connection.execute(sql.encode())

    def effects(self) -> int:
        """How many effects are committed."""
        count: int = self.rows("SELECT count(*) FROM shop_effect")[0][0]
        return count


@asynccontextmanager
async def ending(
    desk: Desk, commit: Callable[[], Any], rollback: Callable[[], Any], close: Callable[[], Any]
) -> AsyncIterator[Desk]:
    """Commit what ends well, roll back the rest, close in any case."""
    try:
        try:
            yield desk
        except BaseException:
            await settle(rollback())
            raise
        await settle(commit())
    finally:
        await settle(close())
