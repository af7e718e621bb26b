"""What a type checker says about the guard where every driver is installed. Checked, never run."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable
from typing import Any, assert_type

import asyncpg  # type: ignore[import-untyped, unused-ignore]  # pyright: ignore[reportMissingTypeStubs]
import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from oncebox.inbox import AsyncOnce, Claim, Inbox, Once
from oncebox.message import Message

inbox = Inbox("billing")


def blocking_handles_give_blocking_blocks(
    plain: sqlite3.Connection,
    driver: psycopg.Connection[Any],
    connection: Connection,
    session: Session,
    scoped: scoped_session[Session],
) -> None:
    assert_type(inbox.once(plain, "evt-1"), Once)
    assert_type(inbox.once(driver, "evt-1", source="shop", type="paid", payload={"a": 1}), Once)
    assert_type(inbox.once(connection, "evt-1"), Once)
    assert_type(inbox.once(session, "evt-1"), Once)
    assert_type(inbox.once(scoped, "evt-1"), Once)
    with inbox.once(session, "evt-1") as claim:
        assert_type(claim, Claim)
        assert_type(claim.first, bool)
        if claim:
            claim.result = {"entry": 1}
    assert_type(inbox.claim_many(driver, [Message(id="evt-1")]), list[Claim])
    assert_type(inbox.resolve(plain, "evt-1", done=True), None)


async def async_handles_give_async_blocks(
    driver: psycopg.AsyncConnection[Any],
    connection: AsyncConnection,
    session: AsyncSession,
    scoped: async_scoped_session[AsyncSession],
) -> None:
    assert_type(inbox.once(driver, "evt-1"), AsyncOnce)
    assert_type(inbox.once(connection, "evt-1"), AsyncOnce)
    assert_type(inbox.once(session, "evt-1"), AsyncOnce)
    assert_type(inbox.once(scoped, "evt-1"), AsyncOnce)
    async with inbox.once(session, "evt-1") as claim:
        assert_type(claim, Claim)
    assert_type(inbox.claim_many(driver, [Message(id="evt-1")]), Awaitable[list[Claim]])
    claims = await inbox.claim_many(session, [])
    assert_type(claims, list[Claim])
    assert_type(inbox.resolve(session, "evt-1", done=False), Awaitable[None])


class StubbedAsyncpg:
    """asyncpg's connection as type stubs describe it; asyncpg itself has none."""

    def is_in_transaction(self) -> bool:
        raise NotImplementedError


async def asyncpg_has_no_commit_and_is_known_all_the_same(
    stubbed: StubbedAsyncpg,
    connection: asyncpg.Connection,
    proxy: asyncpg.pool.PoolConnectionProxy,
) -> None:
    assert_type(inbox.once(stubbed, "evt-1"), AsyncOnce)
    block: AsyncOnce = inbox.once(connection, "evt-1")
    async with block as claim:
        assert_type(claim, Claim)
    async with inbox.once(proxy, "evt-1"):
        pass


async def the_wrong_kind_of_with_is_an_error(driver: psycopg.Connection[Any], session: AsyncSession) -> None:
    with inbox.once(session, "evt-1"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    async with inbox.once(driver, "evt-1"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass


def what_is_no_handle_is_an_error() -> None:
    inbox.once("postgresql://localhost", "evt-1")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    inbox.once(object(), "evt-1")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
