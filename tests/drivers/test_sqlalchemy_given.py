"""What an app can be given, and what it refuses and how."""

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, StaticPool, create_engine
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from oncebox import App
from oncebox.drivers.session import Settings
from oncebox.drivers.sqlalchemy import SqlAlchemyDatabase
from oncebox.errors import ConfigError, DatabaseUnavailable, HandlerError
from tests.core.fixtures import inline
from tests.drivers.orm import KINDS, OrmShop, make_engine, make_sessions

SECRET = "c4n4ry"
PG = f"postgresql+psycopg://me:{SECRET}@db.example:5433/shop"


def refusal(given: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        SqlAlchemyDatabase(given)
    return str(refused.value)


def test_makers_and_engines_of_both_colours_are_taken() -> None:
    engine, async_engine = create_engine(PG), create_async_engine(PG)
    given: Any
    for given in (engine, sessionmaker(engine), scoped_session(sessionmaker(engine))):
        assert SqlAlchemyDatabase(given).handle_kinds() == {"sqlalchemy-session", "sqlalchemy-connection"}
    sessions = async_sessionmaker(async_engine)
    makers = (async_engine, sessions, async_scoped_session(sessions, scopefunc=int))
    for given in (*makers, sessionmaker(async_engine, class_=AsyncSession)):  # type: ignore[call-overload]
        database = SqlAlchemyDatabase(given)
        assert database.handle_kinds() == {"sqlalchemy-async-session", "sqlalchemy-async-connection"}
        assert not database.serves_sync


def test_it_says_where_it_is_without_user_or_password() -> None:
    database = SqlAlchemyDatabase(create_engine(PG))
    assert (database.dialect, database.driver, database.schema) == ("postgresql", "psycopg", "oncebox")
    assert database.place == "postgresql://db.example:5433/shop"
    assert repr(database) == "<SqlAlchemyDatabase postgresql://db.example:5433/shop over psycopg>"
    assert SECRET not in repr(vars(database))


def test_what_is_no_engine_is_refused() -> None:
    engine = create_engine(PG)
    assert "not a dict" in refusal({})
    assert "not the class Session" in refusal(Session)
    assert "one transaction" in refusal(Session(engine))
    assert "has no engine" in refusal(sessionmaker())
    assert "a Connection for an engine" in refusal(sessionmaker(create_engine("sqlite://").connect()))
    assert "binds name another engine" in refusal(sessionmaker(engine, binds={object: create_engine(PG)}))
    assert "needs an engine of create_async_engine" in refusal(async_sessionmaker(engine))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqlite://", "in a file"),
        ("sqlite:///:memory:", "in a file"),
        ("sqlite:///file:shop.db?uri=true", "not by a file: URI"),
    ],
)
def test_a_database_in_memory_is_refused(url: str, why: str) -> None:
    assert why in refusal(create_engine(url))


def test_other_drivers_are_refused_by_name() -> None:
    engine = create_engine(PG)
    engine.dialect.driver = "psycopg2"
    assert "postgresql+psycopg2" in refusal(engine)


def test_a_pool_of_one_connection_for_all_is_refused(tmp_path: Path) -> None:
    assert "StaticPool" in refusal(create_engine(f"sqlite:///{tmp_path}/x.db", poolclass=StaticPool))


def test_handlers_of_the_other_colour_are_refused_where_they_are_registered() -> None:
    blocking = App(create_engine(PG)).consumer("billing")
    waiting = App(create_async_engine(PG)).consumer("billing")

    async def wrong(session: Session) -> None: ...
    def wrong_too(session: AsyncSession) -> None: ...

    with pytest.raises(HandlerError, match=r"sqlalchemy\.orm\.Session can't be used in async def"):
        blocking.handler()(wrong)
    with pytest.raises(HandlerError, match=r"AsyncSession can't be used in def"):
        waiting.handler()(wrong_too)


def test_an_async_engine_has_no_blocking_connection() -> None:
    with pytest.raises(ConfigError, match="no blocking connections"):
        SqlAlchemyDatabase(create_async_engine(PG)).connect(Settings(handlers=True))


@pytest.mark.parametrize("side", [False, True], ids=["effects", "own"])
@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async", "asyncpg"])
async def test_a_database_that_is_away_is_named_without_its_password(kind: str, side: bool) -> None:
    engine = make_engine(KINDS[kind], f"postgresql://me:{SECRET}@127.0.0.1:1/shop")
    database = SqlAlchemyDatabase(engine)
    with pytest.raises(DatabaseUnavailable) as away:
        await _connected(database, Settings(side=side, handlers=not side))
    assert "can't be reached" in str(away.value)
    assert SECRET not in str(away.value)


@inline
async def test_an_engine_that_commits_by_itself_is_refused(shop: OrmShop) -> None:
    kind, url = shop.kind, shop._url
    engine = make_engine(kind, url, isolation_level="AUTOCOMMIT")
    database = SqlAlchemyDatabase(make_sessions(engine))
    with pytest.raises(ConfigError, match="AUTOCOMMIT"):
        await _connected(database, Settings())
    shop.engine, first = engine, shop.engine
    await shop.close()
    await _dispose(first)


def test_an_engine_with_the_autocommit_option_is_refused_at_once() -> None:
    assert "AUTOCOMMIT" in refusal(create_engine(PG).execution_options(isolation_level="AUTOCOMMIT"))


def test_a_creator_that_opens_another_file_is_refused(tmp_path: Path) -> None:
    def creator() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "other.db", check_same_thread=False)

    engine = create_engine(f"sqlite:///{tmp_path}/shop.db", creator=creator, poolclass=NullPool)
    with pytest.raises(ConfigError, match=r"opens .*other\.db, but its URL names .*shop\.db"):
        SqlAlchemyDatabase(engine).connect(Settings(handlers=True))


def test_a_blocking_engine_does_not_need_greenlet(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
sys.modules["greenlet"] = None
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker
from oncebox import App, Message
from oncebox.brokers.memory import Memory

broker = Memory()
app = App(sessionmaker(create_engine("sqlite:///{tmp_path}/shop.db")))
billing = app.consumer("billing", broker.queue("payments"))

@billing.handler()
def paid(payment: dict, session: Session) -> None:
    session.connection().exec_driver_sql("CREATE TABLE paid (id)")

async def main():
    async with app.running():
        broker.put("payments", Message(id="evt-1", payload={{}}))
        await broker.drained("payments")

asyncio.run(main())
assert billing.process_sync(Message(id="evt-1", payload={{}})).status == "duplicate"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def _connected(database: SqlAlchemyDatabase, settings: Settings) -> Any:
    return database.connect(settings) if database.serves_sync else await database.connect_async(settings)


async def _dispose(engine: Any) -> None:
    disposed = engine.dispose()
    if disposed is not None:
        await disposed
