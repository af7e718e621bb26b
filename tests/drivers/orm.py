"""`OrmShop`: the behavioural suite's shop, on a SQLAlchemy sessionmaker. Closing it shows that the pool
has every connection back."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine, String, create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import QueuePool

from oncebox import App, Tx
from tests.core.bodies import Body, Call
from tests.core.drivers import Db, Kind, at_once
from tests.core.kit import Shop

KINDS = {
    kind.name: kind
    for kind in (
        Kind("pysqlite", "sqlite", False, Session, "sqlite"),
        Kind("aiosqlite", "sqlite", True, AsyncSession, "sqlite+aiosqlite"),
        Kind("psycopg", "postgresql", False, Session, "postgresql+psycopg"),
        Kind("psycopg-async", "postgresql", True, AsyncSession, "postgresql+psycopg"),
        Kind("asyncpg", "postgresql", True, AsyncSession, "postgresql+asyncpg"),
    )
}
PLAIN = {"pysqlite": "sqlite", "aiosqlite": "sqlite-async"}
"""What the same driver is called without SQLAlchemy, where that differs."""
ACCOUNT = (
    "CREATE TABLE IF NOT EXISTS account (name VARCHAR(20) PRIMARY KEY, balance INTEGER NOT NULL DEFAULT 0)"
)


class Base(DeclarativeBase):
    pass


class Account(Base):
    """Something with a key that can clash, and a balance that can be lost."""

    __tablename__ = "account"
    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    balance: Mapped[int] = mapped_column(default=0)


class OrmDb(Db):
    """A handler's session or connection with one spelling."""

    async def run(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        head, *rest = sql.split("?")
        named = head + "".join(f":p{n}{part}" for n, part in enumerate(rest))
        result = self.raw.execute(text(named), {f"p{n}": value for n, value in enumerate(params)})
        if self.kind.is_async:
            result = await result
        return [tuple(row) for row in result] if result.returns_rows else []

    async def do(self, name: str, *args: Any) -> Any:
        """Call a method of the session or connection, awaiting it where it waits."""
        reply = getattr(self.raw, name)(*args)
        return await reply if hasattr(reply, "__await__") else reply


def engine_url(kind: Kind, url: str) -> str:
    return f"{kind.scheme}://{url.split('://', 1)[1]}"


def make_engine(kind: Kind, url: str, **words: Any) -> Engine | AsyncEngine:
    make: Callable[..., Engine | AsyncEngine] = create_async_engine if kind.is_async else create_engine
    return make(engine_url(kind, url), **words)


def make_sessions(engine: Engine | AsyncEngine, **words: Any) -> Any:
    if isinstance(engine, AsyncEngine):
        return async_sessionmaker(engine, **words)
    return sessionmaker(engine, **words)


class OrmShop(Shop):
    """An app on a sessionmaker (`sessions=…`), or on an engine."""

    def __init__(
        self,
        kind: str,
        url: str,
        mode: str = "inline",
        *,
        engine: Any = None,
        sessions: Any = None,
        **app: Any,
    ) -> None:
        super().__init__(PLAIN.get(kind, kind), url, mode, **app)
        self.kind = KINDS[kind]
        self.engine = engine if engine is not None else make_engine(self.kind, url)
        self.app = App(sessions if sessions is not None else make_sessions(self.engine), **app)
        self.connection = self.kind.connection
        self.rows(ACCOUNT)

    @property
    def pool(self) -> Any:
        return self.engine.pool

    def checked_out(self) -> int:
        """Connections that somebody has of the pool."""
        return self.pool.checkedout() if isinstance(self.pool, QueuePool) else 0

    async def close(self) -> None:
        await super().close()
        leaked = self.checked_out()
        if isinstance(self.engine, AsyncEngine):
            await self.engine.dispose()
        else:
            self.engine.dispose()
        assert leaked == 0, f"{leaked} connections were not given back to the pool"

    def _adapted(self, body: Body, payload: Any, message: Any) -> Callable[..., Any]:
        kind = self.kind

        async def waiting(payload, message, tx, conn):  # type: ignore[no-untyped-def]
            return await body(Call(payload, message, tx, OrmDb(kind, conn)))

        def blocking(payload, message, tx, conn):  # type: ignore[no-untyped-def]
            return at_once(body(Call(payload, message, tx, OrmDb(kind, conn))))

        adapted: Callable[..., Any] = waiting if kind.is_async else blocking
        adapted.__annotations__ = {
            "payload": payload, "message": message, "tx": Tx, "conn": self.connection
        }  # fmt: skip
        return adapted

    def with_connections(self) -> None:
        """From now on, handlers ask for the connection instead of the session."""
        self.connection = AsyncConnection if self.kind.is_async else Connection

    def balances(self) -> dict[str, int]:
        return dict(self.rows("SELECT name, balance FROM account"))
