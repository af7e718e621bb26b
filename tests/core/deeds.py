"""What a handler must not do to its transaction, for every driver that lets it try."""

import contextlib
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, NamedTuple

from tests.core.drivers import KINDS, Db

SQLITE = ("sqlite", "sqlite-async")
PSYCOPG = ("psycopg", "psycopg-async")
POSTGRESQL = (*PSYCOPG, "asyncpg")
EVERY = tuple(KINDS)


class Deed(NamedTuple):
    """Something done to the connection in the middle of a handler."""

    name: str
    kinds: tuple[str, ...]
    do: Callable[[Db], Awaitable[None]]
    leaves_autocommit: bool = False
    """No transaction is open afterwards and the driver says nothing, so that what the handler does next
    commits by itself. That can't be undone, only reported."""


async def _maybe(reply: Any) -> None:
    if isawaitable(reply):
        await reply


async def commits(db: Db) -> None:
    await _maybe(db.raw.commit())


async def rolls_back(db: Db) -> None:
    await _maybe(db.raw.rollback())


async def commits_in_sql(db: Db) -> None:
    await db.run("COMMIT")


async def ends_in_sql(db: Db) -> None:
    await db.run("end transaction")


async def rolls_back_in_sql(db: Db) -> None:
    await db.run("ROLLBACK")


async def rolls_back_and_begins(db: Db) -> None:
    await db.run("ROLLBACK")
    await db.run("BEGIN")


async def commits_in_a_script(db: Db) -> None:
    await db.script("INSERT INTO shop_effect (key, note) VALUES ('evt-1', 'script'); COMMIT; BEGIN")


async def runs_a_script(db: Db) -> None:
    # executescript commits whatever is open before it starts.
    await db.script("INSERT INTO shop_effect (key, note) VALUES ('evt-1', 'script')")


async def uses_the_connection_as_a_context(db: Db) -> None:
    if db.kind.is_async and db.kind.engine == "postgresql":
        async with db.raw:
            await db.effect("evt-1", "context")
    else:
        with db.raw:
            await db.effect("evt-1", "context")


async def swallows_a_refused_commit(db: Db) -> None:
    with contextlib.suppress(Exception):
        await db.run("COMMIT")


async def swallows_a_database_error(db: Db) -> None:
    # Division by zero is no error on SQLite.
    with contextlib.suppress(Exception):
        await db.run(
            "SELECT 1 / 0" if db.kind.engine == "postgresql" else "INSERT INTO shop_effect VALUES (1)"
        )


async def swallows_an_automatic_rollback(db: Db) -> None:
    await db.run("CREATE TABLE taken (name TEXT PRIMARY KEY)")
    await db.run("INSERT INTO taken VALUES ('x')")
    with contextlib.suppress(Exception):
        await db.run("INSERT OR ROLLBACK INTO taken VALUES ('x')")


DEEDS = (
    Deed("commit()", (*SQLITE, *PSYCOPG), commits),
    Deed("COMMIT", EVERY, commits_in_sql),
    Deed("END", EVERY, ends_in_sql),
    Deed("rollback()", SQLITE, rolls_back),
    Deed("rollback()", PSYCOPG, rolls_back, leaves_autocommit=True),
    Deed("ROLLBACK", SQLITE, rolls_back_in_sql),
    Deed("ROLLBACK", POSTGRESQL, rolls_back_in_sql, leaves_autocommit=True),
    Deed("ROLLBACK; BEGIN", EVERY, rolls_back_and_begins),
    Deed("script with COMMIT", POSTGRESQL, commits_in_a_script),
    Deed("executescript", SQLITE, runs_a_script),
    Deed("with conn", (*SQLITE, *PSYCOPG), uses_the_connection_as_a_context),
    Deed("COMMIT, error swallowed", POSTGRESQL, swallows_a_refused_commit, leaves_autocommit=True),
    Deed("COMMIT, error swallowed", SQLITE, swallows_a_refused_commit),
    Deed("error swallowed", EVERY, swallows_a_database_error),
    Deed("OR ROLLBACK swallowed", SQLITE, swallows_an_automatic_rollback),
)
PAIRS = [(kind, deed) for deed in DEEDS for kind in deed.kinds]
