"""Which settings an app brings to the engine's connections, and what it leaves behind: nothing."""

import sqlite3
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import NullPool, create_engine, event, text
from sqlalchemy.ext.asyncio import (
    create_async_engine,
)

from oncebox.brokers.memory import Memory
from oncebox.drivers.session import Settings
from oncebox.drivers.sqlalchemy import SqlAlchemyDatabase
from oncebox.runtime import schema
from oncebox.schema import migrate
from tests.core.fixtures import inline, on
from tests.core.kit import Call, effect
from tests.core.kit import event as message
from tests.drivers.orm import KINDS, OrmShop, make_engine


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


async def _dispose(engine: Any) -> None:
    disposed = engine.dispose()
    if disposed is not None:
        await disposed
