"""What a type checker says about the guard where psycopg is the only driver. Checked, never run."""

from __future__ import annotations

import sqlite3
from typing import Any, assert_type

import psycopg

from oncebox.inbox import AsyncOnce, Claim, Inbox, Once

inbox = Inbox("billing")


def blocking_handles_give_blocking_blocks(plain: sqlite3.Connection, driver: psycopg.Connection[Any]) -> None:
    assert_type(inbox.once(plain, "evt-1"), Once)
    assert_type(inbox.once(driver, "evt-1"), Once)
    with inbox.once(driver, "evt-1") as claim:
        assert_type(claim, Claim)
    assert_type(inbox.claim_many(driver, []), list[Claim])


async def async_handles_give_async_blocks(driver: psycopg.AsyncConnection[Any]) -> None:
    assert_type(inbox.once(driver, "evt-1"), AsyncOnce)
    async with inbox.once(driver, "evt-1") as claim:
        assert_type(claim, Claim)
    assert_type(await inbox.claim_many(driver, []), list[Claim])


async def the_wrong_kind_of_with_is_an_error(driver: psycopg.Connection[Any]) -> None:
    async with inbox.once(driver, "evt-1"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
