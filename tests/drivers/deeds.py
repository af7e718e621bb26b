"""What a handler must not do to its transaction through SQLAlchemy."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from oncebox.errors import TransactionEnded
from tests.drivers.orm import Account, OrmDb

SQLITE = ("pysqlite", "aiosqlite")
POSTGRESQL = ("psycopg", "psycopg-async", "asyncpg")
EVERY = (*SQLITE, *POSTGRESQL)


class Deed(NamedTuple):
    """Something done to the session or connection in the middle of a handler."""

    name: str
    do: Callable[[OrmDb], Awaitable[Any]]
    handles: tuple[str, ...] = ("session", "connection")
    kinds: tuple[str, ...] = EVERY


async def commits(db: OrmDb) -> None:
    await db.do("commit")


async def rolls_back(db: OrmDb) -> None:
    await db.do("rollback")


async def closes(db: OrmDb) -> None:
    await db.do("close")


async def invalidates(db: OrmDb) -> None:
    await db.do("invalidate")


async def begins(db: OrmDb) -> None:
    if db.kind.is_async:
        async with db.raw.begin():
            await db.effect("evt-1", "begun")
    else:
        with db.raw.begin():
            await db.effect("evt-1", "begun")


async def is_a_context(db: OrmDb) -> None:
    if db.kind.is_async:
        async with db.raw:
            await db.effect("evt-1", "context")
            await db.do("commit")
    else:
        with db.raw:
            await db.effect("evt-1", "context")
            db.raw.commit()


async def commits_in_sql(db: OrmDb) -> None:
    await db.run("COMMIT")


async def rolls_back_in_sql(db: OrmDb) -> None:
    await db.run("ROLLBACK")


async def rolls_back_and_begins_in_sql(db: OrmDb) -> None:
    await db.run("ROLLBACK")
    await db.run("BEGIN")


async def swallows(db: OrmDb, deed: Callable[[OrmDb], Awaitable[Any]]) -> None:
    with contextlib.suppress(SQLAlchemyError, TransactionEnded):
        await deed(db)


async def commits_and_swallows(db: OrmDb) -> None:
    await swallows(db, commits)


async def commits_in_sql_and_swallows(db: OrmDb) -> None:
    await swallows(db, commits_in_sql)


async def commits_and_goes_on_and_commits(db: OrmDb) -> None:
    for _ in range(2):
        await swallows(db, commits)
        await swallows(db, rolls_back)
        await swallows(db, lambda db: db.effect("evt-1", "again"))
        await swallows(db, commits)


async def commits_the_sessions_connection(db: OrmDb) -> None:
    connection = await db.do("connection")
    reply = connection.commit()
    if db.kind.is_async:
        await reply


async def on_the_driver(db: OrmDb, name: str) -> None:
    """Past SQLAlchemy."""

    def through(connection: Connection) -> None:
        getattr(connection.connection, name)()

    if db.kind.is_async:
        connection = db.raw if hasattr(db.raw, "get_raw_connection") else await db.raw.connection()
        await connection.run_sync(through)
    else:
        through(db.raw if isinstance(db.raw, Connection) else db.raw.connection())


async def commits_on_the_driver(db: OrmDb) -> None:
    await on_the_driver(db, "commit")


async def rolls_back_on_the_driver(db: OrmDb) -> None:
    await on_the_driver(db, "rollback")


async def swallows_a_failed_flush(db: OrmDb) -> None:
    db.raw.add(Account(name="taken"))
    await db.do("flush")
    db.raw.expunge_all()
    db.raw.add(Account(name="taken"))
    await swallows(db, lambda db: db.do("flush"))


async def swallows_a_failed_flush_and_rolls_back(db: OrmDb) -> None:
    await swallows_a_failed_flush(db)
    await db.do("rollback")


async def swallows_a_database_error(db: OrmDb) -> None:
    # Division by zero is no error on SQLite.
    wrong = "SELECT 1 / 0" if db.kind.engine == "postgresql" else "SELECT no_such_column"
    await swallows(db, lambda db: db.run(wrong))


async def swallows_an_automatic_rollback(db: OrmDb) -> None:
    await db.run("INSERT INTO account (name) VALUES ('taken')")
    await swallows(db, lambda db: db.run("INSERT OR ROLLBACK INTO account (name) VALUES ('taken')"))


_SESSION = ("session",)
_CONNECTION = ("connection",)
DEEDS = (
    Deed("commit()", commits),
    Deed("rollback()", rolls_back),
    Deed("close()", closes),
    Deed("invalidate()", invalidates),
    Deed("with begin()", begins, _SESSION),
    Deed("with it", is_a_context),
    Deed("COMMIT", commits_in_sql),
    Deed("ROLLBACK", rolls_back_in_sql),
    Deed("ROLLBACK, BEGIN", rolls_back_and_begins_in_sql),
    Deed("commit() swallowed", commits_and_swallows),
    Deed("COMMIT swallowed", commits_in_sql_and_swallows),
    Deed("commit() again and again", commits_and_goes_on_and_commits),
    Deed("session.connection().commit()", commits_the_sessions_connection, _SESSION),
    Deed("the driver's commit()", commits_on_the_driver),
    Deed("the driver's rollback()", rolls_back_on_the_driver),
    Deed("failed flush swallowed", swallows_a_failed_flush, _SESSION),
    Deed("failed flush swallowed, rollback()", swallows_a_failed_flush_and_rolls_back, _SESSION),
    Deed("error swallowed", swallows_a_database_error),
    Deed("OR ROLLBACK swallowed", swallows_an_automatic_rollback, kinds=SQLITE),
)
CASES = [(kind, handle, deed) for deed in DEEDS for handle in deed.handles for kind in deed.kinds]
