"""What only sqlite3 has: its factories, its files, its ways to commit unasked."""

# ruff: noqa: PT012 - the block is what is tested

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from oncebox import errors
from oncebox.engines.migrations import statements
from oncebox.inbox import Inbox
from oncebox.message import Message

INBOX = Inbox("billing")


def test_row_and_text_factories_are_the_users_own(guard_sqlite_path: str) -> None:
    with closing(sqlite3.connect(guard_sqlite_path)) as connection:
        connection.row_factory = lambda cursor, row: {"a": row}
        connection.text_factory = bytes
        for first in (True, False):
            with INBOX.once(connection, "evt-1", payload=b"x", type="paid") as claim:
                assert claim.first is first
            connection.commit()
        (claim,) = INBOX.claim_many(connection, [Message(id="evt-1", payload=b"x", type="paid")])
        assert not claim.first
        assert isinstance(connection.execute("SELECT 1").fetchone(), dict)


def memory() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for text in statements("sqlite"):
        connection.executescript(text)
    return connection


def test_in_memory_only_open_blocks_are_known_as_this_transactions_own() -> None:
    with closing(memory()) as connection:
        with INBOX.once(connection, "evt-1") as claim:
            assert claim.first
            with pytest.raises(errors.AlreadyClaimed), INBOX.once(connection, "evt-1"):
                pass
        connection.commit()
        with INBOX.once(connection, "evt-1") as claim:
            assert not claim.first


def test_a_block_that_is_over_holds_nothing_any_more() -> None:
    with closing(memory()) as connection:
        with pytest.raises(ZeroDivisionError), INBOX.once(connection, "evt-1"):
            raise ZeroDivisionError
        connection.rollback()
        with INBOX.once(connection, "evt-1") as claim:
            assert claim.first


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_second_claim_in_a_transaction_is_seen_in_every_journal_mode(
    guard_sqlite_path: str, mode: str
) -> None:
    with closing(sqlite3.connect(guard_sqlite_path)) as connection:
        connection.execute(f"PRAGMA journal_mode={mode}")
        with INBOX.once(connection, "evt-1") as claim:
            assert claim.first
        with pytest.raises(errors.AlreadyClaimed), INBOX.once(connection, "evt-1"):
            pass


def test_file_names_that_need_quoting_are_found(tmp_path: Path, sqlite_template: Path) -> None:
    odd = tmp_path / "a b#c?d%20.db"
    odd.write_bytes(sqlite_template.read_bytes())
    with closing(sqlite3.connect(odd)) as connection:
        with INBOX.once(connection, "evt-1") as claim:
            assert claim.first
        with pytest.raises(errors.AlreadyClaimed), INBOX.once(connection, "evt-1"):
            pass


def test_executescript_and_with_connection_commit_and_are_caught(guard_sqlite_path: str) -> None:
    with closing(sqlite3.connect(guard_sqlite_path)) as connection:
        with pytest.raises(errors.TransactionEnded), INBOX.once(connection, "evt-1") as claim:
            assert claim.first
            connection.executescript("CREATE TABLE t (a)")
        with pytest.raises(errors.TransactionEnded), INBOX.once(connection, "evt-2") as claim:
            assert claim.first
            with connection:
                connection.execute("INSERT INTO shop_effect VALUES ('x')")


def test_connection_closed_inside_the_block_is_caught(guard_sqlite_path: str) -> None:
    connection = sqlite3.connect(guard_sqlite_path)
    with pytest.raises(errors.TransactionEnded), INBOX.once(connection, "evt-1") as claim:
        assert claim.first
        connection.close()
