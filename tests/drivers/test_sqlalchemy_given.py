"""What an app can be given, what it refuses and how, and what it leaves behind on the engine."""

import sqlite3
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import NullPool, StaticPool, create_engine, event, text
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from oncebox import App
from oncebox.brokers.memory import Memory
from oncebox.drivers.session import Settings
from oncebox.drivers.sqlalchemy import SqlAlchemyDatabase
from oncebox.errors import ConfigError, DatabaseUnavailable, HandlerError
from oncebox.runtime import schema
from oncebox.schema import migrate
from tests.core.fixtures import inline, on
from tests.core.kit import Call, effect
from tests.core.kit import event as message
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
        SqlAlchemyDatabase(create_async_engine(PG)).connect(Settings())


@pytest.mark.parametrize("side", [False, True], ids=["effects", "own"])
@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async", "asyncpg"])
async def test_a_database_that_is_away_is_named_without_its_password(kind: str, side: bool) -> None:
    engine = make_engine(KINDS[kind], f"postgresql://me:{SECRET}@127.0.0.1:1/shop")
    database = SqlAlchemyDatabase(engine)
    with pytest.raises(DatabaseUnavailable) as away:
        await _connected(database, Settings(side=side))
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


@inline
@on("psycopg", "psycopg-async", "asyncpg")
async def test_effects_are_committed_at_read_committed_whatever_the_engines_level(shop: OrmShop) -> None:
    engine = make_engine(shop.kind, shop._url, isolation_level="SERIALIZABLE")
    serializable = OrmShop(shop.kind.name, shop._url, engine=engine)
    billing = serializable.consumer()

    @serializable.handler(billing)
    async def looks(call: Call) -> Any:
        return (await call.db.run("SELECT current_setting('transaction_isolation')"))[0][0]

    assert (await serializable.deliver(billing, message())).result == "read committed"
    if not shop.kind.is_async:
        with engine.connect() as connection:  # type: ignore[union-attr]
            assert connection.get_isolation_level() == "SERIALIZABLE"
    await serializable.close()


@inline
@on("psycopg", "psycopg-async", "asyncpg")
async def test_nothing_is_left_set_on_the_apps_connections(shop: OrmShop) -> None:
    names = ("lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit", "oncebox.claim")
    asked = text("SELECT " + ", ".join(f"current_setting('{name}', true)" for name in names))
    billing = shop.consumer(durability="group")
    shop.handler(billing)(effect)
    await shop.deliver(billing, message())
    engine: Any = shop.engine
    if shop.kind.is_async:
        async with engine.connect() as connection:
            left = tuple((await connection.execute(asked)).one())
    else:
        with engine.connect() as connection:
            left = tuple(connection.execute(asked).one())
    assert left == ("0", "0", "on", "")


@inline
@on("pysqlite", "aiosqlite")
async def test_sqlite_connections_go_back_as_they_came(shop: OrmShop) -> None:
    raw = _only_connection(shop)
    billing = shop.consumer(lock_timeout_seconds=3.0)

    @shop.handler(billing)
    async def looks(call: Call) -> Any:
        found = [(await call.db.run(f"PRAGMA {name}"))[0][0] for name in ("synchronous", "busy_timeout")]
        return [*found, raw[0].isolation_level, raw[0].in_transaction]

    assert (await shop.deliver(billing, message())).result == [2, 3000, None, True]
    assert len(raw) == 1
    assert (raw[0].isolation_level, raw[0].in_transaction) == ("", False)
    assert raw[0].execute("PRAGMA synchronous").fetchone() == (1,)
    assert raw[0].execute("PRAGMA busy_timeout").fetchone() == (5000,)
    raw[0].execute("BEGIN")
    raw[0].execute("COMMIT")  # no authorizer is left behind
    assert shop.rows("PRAGMA journal_mode") == [("wal",)]


def _only_connection(shop: OrmShop) -> list[sqlite3.Connection]:
    """The driver's connections as the engine opens them, with a setting that is not ours."""
    found: list[sqlite3.Connection] = []

    def opened(dbapi: Any, record: object) -> None:
        cursor = dbapi.cursor()
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()
        driver = getattr(dbapi, "driver_connection", dbapi)
        found.append(getattr(driver, "_conn", driver))

    event.listen(getattr(shop.engine, "sync_engine", shop.engine), "connect", opened)
    return found


@inline
@on("pysqlite", "aiosqlite")
async def test_an_engine_that_begins_by_itself_is_fine(shop: OrmShop) -> None:
    # The recipe of SQLAlchemy's documentation for SQLite.
    engine = getattr(shop.engine, "sync_engine", shop.engine)

    @event.listens_for(engine, "connect")
    def connect(dbapi: Any, record: object) -> None:
        dbapi.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    billing = shop.consumer(batch=5)
    shop.handler(billing)(effect)
    await shop.settle_all(billing, [message(f"evt-{n}") for n in range(5)])
    assert shop.effects() == {f"evt-{n}": 1 for n in range(5)}


def test_a_creator_that_opens_another_file_is_refused(tmp_path: Path) -> None:
    def creator() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "other.db", check_same_thread=False)

    engine = create_engine(f"sqlite:///{tmp_path}/shop.db", creator=creator, poolclass=NullPool)
    with pytest.raises(ConfigError, match=r"opens .*other\.db, but its URL names .*shop\.db"):
        SqlAlchemyDatabase(engine).connect(Settings())


async def test_own_connections_are_made_by_the_engines_recipe(pg_url: str) -> None:
    migrate(pg_url)
    host = pg_url.split("@")[1].split("/")
    port, name = host[0].split(":")[1], host[1]
    user = pg_url.split("://")[1].split("@")[0]
    arguments = {"host": "127.0.0.1", "port": int(port), "user": user}
    wrong = f"postgresql+{{}}://nobody@192.0.2.1/{name}"
    asked = "SELECT current_setting('application_name'), current_setting('synchronous_commit')"
    engine = create_engine(
        wrong.format("psycopg"), connect_args={**arguments, "application_name": "shop"}, poolclass=NullPool
    )
    for session in (
        SqlAlchemyDatabase(engine).connect(Settings(side=True)),
        await SqlAlchemyDatabase(engine).connect_async(Settings(side=True)),
    ):
        assert session.raw.execute(asked).fetchone() == ("shop", "off")
        closed = session.close()
        if closed is not None:
            await closed
    waiting = create_async_engine(
        wrong.format("asyncpg"), connect_args={**arguments, "server_settings": {"application_name": "shop"}}
    )
    own = await SqlAlchemyDatabase(waiting).connect_async(Settings(side=True))
    assert tuple(await own.raw.fetchrow(asked)) == ("shop", "off")
    await own.close()
    assert waiting.pool.checkedout() == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", list(KINDS))
async def test_the_tables_can_be_made_over_the_engine(kind: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("sqlite_url" if KINDS[kind].engine == "sqlite" else "pg_url")
    engine = make_engine(KINDS[kind], url)
    database = SqlAlchemyDatabase(engine)
    for applied in (bool, lambda versions: not versions):
        made = schema.migrate(database) if database.serves_sync else await schema.migrate_async(database)
        assert applied(made)
    await schema.check_schema_async(database)
    await _dispose(engine)


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async", "asyncpg"])
async def test_a_transaction_pooler_is_fine_for_an_engine_without_prepared_statements(
    kind: str, pgbouncer_url: str, pg_url: str
) -> None:
    arguments: dict[str, Any] = {"prepare_threshold": None}
    if kind == "asyncpg":
        arguments = {
            "statement_cache_size": 0, "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"s{uuid4().hex}",
        }  # fmt: skip
    engine = make_engine(KINDS[kind], pgbouncer_url, connect_args=arguments, poolclass=NullPool)
    shop = OrmShop(kind, pg_url, engine=engine)
    broker = Memory()
    billing = shop.consumer(source=broker.queue("payments"), concurrency=4)
    shop.handler(billing)(effect)
    async with shop.app.running():
        broker.put("payments", *(message(f"evt-{n}") for n in range(50)), duplicates=1)
        await broker.drained("payments")
    assert shop.effects() == {f"evt-{n}": 1 for n in range(50)}
    await shop.close()


async def _connected(database: SqlAlchemyDatabase, settings: Settings) -> Any:
    return database.connect(settings) if database.serves_sync else await database.connect_async(settings)


async def _dispose(engine: Any) -> None:
    disposed = engine.dispose()
    if disposed is not None:
        await disposed
