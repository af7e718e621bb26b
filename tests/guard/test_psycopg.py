"""What only psycopg has, and what PostgreSQL shows of the mark."""

# ruff: noqa: PT012, SIM117 - the block is what is tested

from __future__ import annotations

import asyncio
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from oncebox import errors
from oncebox.engines.migrations import statements
from oncebox.engines.postgresql import CALLS_COUNTED
from oncebox.inbox import Inbox
from tests.waiting import eventually

INBOX = Inbox("billing")


def application_name(connection: psycopg.Connection[Any]) -> Any:
    return connection.execute("SELECT current_setting('application_name')").fetchone()


def test_operators_see_the_users_application_name_and_the_mark(guard_pg_url: str) -> None:
    with psycopg.connect(guard_pg_url, application_name="shop-api") as connection:
        with INBOX.once(connection, "evt-1") as claim:
            assert claim.first
            (name,) = application_name(connection)
            assert name.startswith("shop-api oncebox:")
        connection.commit()
        assert application_name(connection) == ("shop-api",)


def test_long_application_name_leaves_room_for_the_mark(guard_pg_url: str) -> None:
    with psycopg.connect(guard_pg_url, application_name="x" * 63) as connection:
        with INBOX.once(connection, "evt-1") as claim:
            assert claim.first
            (name,) = application_name(connection)
            assert len(name) <= 63
            assert " oncebox:" in name


def test_application_name_set_by_the_block_is_no_false_alarm(guard_pg_url: str) -> None:
    with psycopg.connect(guard_pg_url) as connection:
        with INBOX.once(connection, "evt-1") as outer:
            assert outer.first
            connection.execute("SET LOCAL application_name = 'mine'")
            with INBOX.once(connection, "evt-2") as inner:
                assert inner.first
            connection.execute("SET application_name = 'session-wide'")
        with pytest.raises(errors.AlreadyClaimed), INBOX.once(connection, "evt-1"):
            pass


@pytest.mark.parametrize("factory", [psycopg.ClientCursor, psycopg.RawCursor])
def test_row_and_cursor_factories_are_the_users_own(guard_pg_url: str, factory: Any) -> None:
    with psycopg.connect(guard_pg_url, row_factory=dict_row, cursor_factory=factory) as connection:
        for first in (True, False):
            with INBOX.once(connection, "evt-1", payload=b"x") as claim:
                assert claim.first is first
            connection.commit()


def test_block_inside_a_pipeline(guard_pg_url: str) -> None:
    with psycopg.connect(guard_pg_url) as connection:
        with connection.pipeline(), INBOX.once(connection, "evt-1") as claim:
            assert claim.first
            connection.execute("INSERT INTO shop_effect VALUES ('x')")
            claim.result = 1
        connection.commit()
        with INBOX.once(connection, "evt-1") as claim:
            assert not claim.first
            assert claim.result == 1
        connection.commit()
        with (
            pytest.raises((errors.TransactionError, psycopg.errors.DivisionByZero)),
            connection.pipeline(),
            INBOX.once(connection, "evt-2") as claim,
        ):
            assert claim.first
            connection.execute("SELECT 1/0")


def test_the_drivers_own_errors_pass_unchanged(guard_pg_url: str) -> None:
    with psycopg.connect(guard_pg_url) as holder, psycopg.connect(guard_pg_url) as waiter:
        with INBOX.once(holder, "evt-1") as claim:
            assert claim.first
        waiter.execute("SET lock_timeout = '20ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable), INBOX.once(waiter, "evt-1"):
            pass
        with pytest.raises(errors.TransactionAborted, match="failed already"), INBOX.once(waiter, "evt-1"):
            pass
        waiter.rollback()


def test_repeatable_read_conflict_is_the_drivers_own(guard_pg_url: str) -> None:
    with psycopg.connect(guard_pg_url) as early, psycopg.connect(guard_pg_url) as late:
        late.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        late.execute("SELECT 1 FROM shop_effect")
        with INBOX.once(early, "evt-1") as claim:
            assert claim.first
        early.commit()
        with pytest.raises(psycopg.errors.SerializationFailure), INBOX.once(late, "evt-1"):
            pass
        late.rollback()


def test_connection_lost_inside_the_block_is_caught(guard_pg_url: str) -> None:
    connection = psycopg.connect(guard_pg_url)
    with pytest.raises(errors.TransactionEnded), INBOX.once(connection, "evt-1") as claim:
        assert claim.first
        connection.close()


def test_behind_a_transaction_pooler(pgbouncer_url: str, pg_url: str) -> None:
    with psycopg.connect(pg_url) as connection:
        for text in statements("postgresql"):
            connection.execute(text.encode())
    with psycopg.connect(pgbouncer_url, application_name="shop", prepare_threshold=None) as connection:
        for first in (True, False):
            with INBOX.once(connection, "evt-1") as claim:
                assert claim.first is first
            connection.commit()
        assert application_name(connection) == ("shop",)
        connection.commit()
        with pytest.raises(errors.TransactionEnded), INBOX.once(connection, "evt-2") as claim:
            assert claim.first
            connection.commit()
            connection.execute("SELECT 1")


async def test_cancelled_block_is_unfinished_if_it_is_committed(guard_pg_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(guard_pg_url) as connection:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit, INBOX.once(connection, "evt-1") as claim:
                assert claim.first
                limit.reschedule(asyncio.get_running_loop().time())
                await asyncio.Event().wait()
        await connection.commit()
        with pytest.raises(errors.UnfinishedClaim):
            async with INBOX.once(connection, "evt-1"):
                pass


def sent(connection: psycopg.Connection[Any], trace: Path, act: Callable[[], object]) -> list[str]:
    """The names of the messages that the client sent meanwhile, as libpq writes them down."""
    with trace.open("w") as file:
        connection.pgconn.trace(file.fileno())
        try:
            act()
        finally:
            connection.pgconn.untrace()
    return re.findall(r"\tF\t\d+\t(\w+)", trace.read_text())


def test_claim_that_opens_the_transaction_brings_its_begin_along(guard_pg_url: str, tmp_path: Path) -> None:
    with psycopg.connect(guard_pg_url) as connection:
        assert sent(connection, tmp_path / "trace", INBOX.once(connection, "evt-1").__enter__) == ["Query"]
        assert connection.info.transaction_status == TransactionStatus.INTRANS
        connection.rollback()
        with INBOX.once(connection, "evt-1") as claim:
            assert claim.first, "it was rolled back with its transaction"


def test_claim_that_opens_the_transaction_needs_the_ledgers_rights_alone(guard_pg_url: str) -> None:
    with psycopg.connect(guard_pg_url, autocommit=True) as owner:
        owner.execute(
            "CREATE SCHEMA careful; ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON ROUTINES FROM PUBLIC; "
            "CREATE ROLE clerk LOGIN"
        )
        try:
            for statement in statements("postgresql", schema="careful"):
                owner.execute(statement.encode())
            owner.execute(
                "GRANT USAGE ON SCHEMA careful TO clerk; GRANT SELECT, INSERT ON careful.ledger TO clerk"
            )
            with psycopg.connect(guard_pg_url, user="clerk") as connection:
                with Inbox("billing", schema="careful").once(connection, "evt-1") as claim:
                    assert claim.first
            assert owner.execute("SELECT message_id FROM careful.ledger").fetchall() == [("evt-1",)]
        finally:
            owner.execute(
                "DROP SCHEMA careful CASCADE; ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON ROUTINES TO PUBLIC; "
                "DROP ROLE clerk"
            )


def test_tables_of_an_older_oncebox_name_the_command(guard_pg_url: str) -> None:
    with psycopg.connect(guard_pg_url, autocommit=True) as owner:
        for statement in statements("postgresql", schema="older"):
            owner.execute(statement.encode())
        owner.execute("DROP PROCEDURE older.guard_open")
        with psycopg.connect(guard_pg_url) as connection:
            once = Inbox("billing", schema="older").once(connection, "evt-1")
            if connection.info.server_version < CALLS_COUNTED:
                assert once.__enter__().first, "there it is not used"
            else:
                with pytest.raises(errors.SchemaOutdated, match="run: oncebox migrate"):
                    once.__enter__()
        owner.execute("DROP SCHEMA older CASCADE")


@pytest.mark.parametrize(
    ("attribute", "value", "setting"),
    [
        ("isolation_level", psycopg.IsolationLevel.SERIALIZABLE, ("transaction_isolation", "serializable")),
        ("read_only", False, ("transaction_read_only", "off")),
        ("deferrable", True, ("transaction_deferrable", "on")),
    ],
)
def test_transaction_keeps_the_character_that_its_connection_gives_it(
    guard_pg_url: str, attribute: str, value: Any, setting: tuple[str, str]
) -> None:
    name, expected = setting
    with psycopg.connect(guard_pg_url, options="-c default_transaction_read_only=off") as connection:
        setattr(connection, attribute, value)
        with INBOX.once(connection, "evt-1") as claim:
            assert claim.first
            assert connection.execute(f"SHOW {name}".encode()).fetchone() == (expected,)
    with psycopg.connect(guard_pg_url) as connection:
        connection.read_only = True
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), INBOX.once(connection, "evt-2"):
            pass


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
def test_ids_are_the_same_in_every_client_encoding(guard_pg_url: str, encoding: str) -> None:
    message = "évt-'1'\\"
    with psycopg.connect(guard_pg_url, client_encoding=encoding) as connection:
        with INBOX.once(connection, message, source="Zürich", payload="ü") as claim:
            assert claim.first
    with psycopg.connect(guard_pg_url) as connection:
        with INBOX.once(connection, message, source="Zürich", payload="ü") as claim:
            assert not claim.first


def test_claim_that_waits_for_another_can_be_interrupted(guard_pg_url: str) -> None:
    """Ctrl-C, or a signal's handler that raises, ends the wait and leaves the connection usable."""

    def interrupt_the_waiting() -> None:
        with psycopg.connect(guard_pg_url, autocommit=True) as observer:
            asked = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
            eventually(lambda: observer.execute(asked, (waiter.info.backend_pid,)).fetchone())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with psycopg.connect(guard_pg_url) as holder, psycopg.connect(guard_pg_url) as waiter:
            with INBOX.once(holder, "evt-1") as claim:
                assert claim.first
            killer = threading.Thread(target=interrupt_the_waiting)
            killer.start()
            with pytest.raises(KeyboardInterrupt), INBOX.once(waiter, "evt-1"):
                raise AssertionError("the key is another's")
            killer.join()
            waiter.rollback()
            holder.commit()
            with INBOX.once(waiter, "evt-1") as claim:
                assert not claim.first
    finally:
        signal.signal(signal.SIGINT, previous)
