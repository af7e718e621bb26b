"""What only SQLAlchemy has: units of work, pools, and sessions inside somebody else's transaction."""

# ruff: noqa: PT012, SIM117 - the block is what is tested

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, NullPool, StaticPool, create_engine, event, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from oncebox import errors
from oncebox.engines.migrations import statements
from oncebox.inbox import Inbox

INBOX = Inbox("billing")


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "invoice"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('guard_sqlite_path')}"
    else:
        url = request.getfixturevalue("guard_pg_url").replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url, pool_size=1, max_overflow=0)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


def deliver(session: Session, message_id: str = "evt-1") -> bool:
    with INBOX.once(session, message_id) as claim:
        if claim.first:
            session.add(Invoice(id=1000))
    session.commit()
    return claim.first


def test_pending_objects_are_not_flushed_by_the_claim(engine: Engine) -> None:
    with Session(engine) as session:
        invoice = Invoice()
        session.add(invoice)
        with INBOX.once(session, "evt-1") as claim:
            assert claim.first
            claim.result = 1
        assert invoice in session.new
        session.commit()
        assert session.scalars(select(Invoice)).all() == [invoice]


def test_flush_that_fails_inside_the_block_takes_the_claim_along(engine: Engine) -> None:
    with Session(engine) as session:
        session.add(Invoice(id=1))
        session.commit()
        with pytest.raises(IntegrityError), INBOX.once(session, "evt-1") as claim:
            assert claim.first
            session.add(Invoice(id=1))
            session.flush()
        session.rollback()
        assert deliver(session)


def test_flush_error_that_is_swallowed_with_a_rollback_is_caught(engine: Engine) -> None:
    with Session(engine) as session:
        session.add(Invoice(id=1))
        session.commit()
        session.expunge_all()
        with pytest.raises(errors.TransactionEnded), INBOX.once(session, "evt-1") as claim:
            assert claim.first
            session.add(Invoice(id=1))
            with pytest.raises(IntegrityError):
                session.flush()
            session.rollback()
            session.add(Invoice(id=2))
            session.flush()
        session.rollback()
        assert deliver(session)


def test_begin_nested_inside_the_block_is_fine(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        with INBOX.once(session, "evt-1") as claim:
            assert claim.first
            with pytest.raises(ZeroDivisionError), session.begin_nested():
                session.add(Invoice(id=1))
                session.flush()
                raise ZeroDivisionError
            session.add(Invoice(id=2))
    with Session(engine) as session:
        assert [invoice.id for invoice in session.scalars(select(Invoice))] == [2]
        assert not deliver(session)


def test_block_inside_begin_nested_goes_with_it(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        with pytest.raises(ZeroDivisionError), session.begin_nested(), INBOX.once(session, "evt-1") as claim:
            assert claim.first
            raise ZeroDivisionError
        with session.begin_nested(), INBOX.once(session, "evt-1") as claim:
            assert claim.first


def test_connection_that_went_back_to_the_pool_is_not_looked_at(engine: Engine) -> None:
    # The block commits, and its driver connection now serves another session, in a transaction.
    with Session(engine) as session, Session(engine) as other:
        with pytest.raises(errors.TransactionEnded), INBOX.once(session, "evt-1") as claim:
            assert claim.first
            session.commit()
            with INBOX.once(other, "evt-2") as theirs:
                assert theirs.first
        other.rollback()


def test_connection_that_was_closed_inside_the_block_is_not_looked_at(engine: Engine) -> None:
    # The driver's connection is back in the pool, and in somebody else's transaction.
    connection = engine.connect()
    with Session(engine) as other:
        with pytest.raises(errors.TransactionEnded), INBOX.once(connection, "evt-1") as claim:
            assert claim.first
            connection.close()
            with INBOX.once(other, "evt-2") as theirs:
                assert theirs.first
        other.rollback()


def test_autocommit_option_on_the_session_is_refused(engine: Engine) -> None:
    with Session(engine) as session:
        session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        with pytest.raises(errors.AutocommitHandle), INBOX.once(session, "evt-1"):
            pass


def test_begin_event_recipe_for_sqlite_is_a_transaction(guard_sqlite_path: str) -> None:
    engine = create_engine(f"sqlite:///{guard_sqlite_path}", poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def no_implicit_begin(connection: Any, record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    for first in (True, False):
        with Session(engine) as session, session.begin(), INBOX.once(session, "evt-1") as claim:
            assert claim.first is first


def test_memory_database_of_a_static_pool() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    with closing(engine.raw_connection()) as raw:
        for script in statements("sqlite"):
            raw.driver_connection.executescript(script)  # type: ignore[union-attr]
    for first in (True, False):
        with Session(engine) as session, session.begin(), INBOX.once(session, "evt-1") as claim:
            assert claim.first is first
    engine.dispose()


def test_engines_and_factories_are_no_handles(engine: Engine) -> None:
    for handle in (engine, sessionmaker(engine)):
        with pytest.raises(errors.UnknownHandle, match=r"sqlalchemy\."):
            INBOX.once(handle, "evt-1")  # type: ignore[call-overload]


async def test_blocking_session_inside_run_sync(guard_pg_url: str) -> None:
    url = guard_pg_url.replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(url, poolclass=NullPool)

    def work(session: Session) -> bool:
        with INBOX.once(session, "evt-1") as claim:
            return claim.first

    for first in (True, False):
        async with AsyncSession(engine) as session, session.begin():
            assert await session.run_sync(work) is first


# Tests that wrap everything in one transaction, and roll it back.


@pytest.fixture(params=["create_savepoint", "rollback_only"])
def wrapped(request: pytest.FixtureRequest, engine: Engine) -> Iterator[sessionmaker[Session]]:
    """SQLAlchemy's own recipe for tests: sessions inside an external transaction."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN")  # Python would not begin before a SAVEPOINT
        outer = connection.begin() if not connection.in_transaction() else connection.get_transaction()
        yield sessionmaker(connection, join_transaction_mode=request.param)
        assert outer is not None
        outer.rollback()
    with Session(engine) as session:
        assert session.scalar(text("SELECT count(*) FROM invoice")) == 0
        assert deliver(session)


def test_rollback_per_test_sees_deliveries_as_production_would(wrapped: sessionmaker[Session]) -> None:
    with wrapped() as session:
        assert deliver(session)
        assert not deliver(session)
    with wrapped() as session:
        assert not deliver(session)
        assert session.scalar(text("SELECT count(*) FROM invoice")) == 1


def test_rollback_per_test_still_catches_mistakes(wrapped: sessionmaker[Session]) -> None:
    with wrapped() as session:
        with pytest.raises(errors.AlreadyClaimed), INBOX.once(session, "evt-1") as claim:
            assert claim.first
            with INBOX.once(session, "evt-1"):
                pass
        session.commit()
        with pytest.raises(errors.AlreadyClaimed):
            with INBOX.once(session, "evt-2") as claim:
                assert claim.first
            with INBOX.once(session, "evt-2"):
                pass
        session.commit()
        with pytest.raises(errors.TransactionEnded), INBOX.once(session, "evt-3") as claim:
            assert claim.first
            session.commit()


async def test_rollback_per_test_with_async_sessions(guard_pg_url: str) -> None:
    url = guard_pg_url.replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.connect() as connection, connection.begin() as outer:
        for first in (True, False):
            async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
                async with session.begin(), INBOX.once(session, "evt-1") as claim:
                    assert claim.first is first
        await outer.rollback()
    with psycopg.connect(guard_pg_url) as stranger:
        assert stranger.execute("SELECT count(*) FROM oncebox.ledger").fetchone() == (0,)
