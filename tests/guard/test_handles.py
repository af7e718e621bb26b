"""What the guard takes for a handle, an id and a consumer, and what it needs to import for that."""

# ruff: noqa: SIM117 - the block is what is tested

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest

from oncebox import errors
from oncebox.inbox import Inbox

INBOX = Inbox("billing")


@pytest.mark.parametrize("handle", [None, "postgresql://localhost", object(), sqlite3, sqlite3.Cursor])
def test_unknown_handle_lists_the_known_ones(handle: Any) -> None:
    with pytest.raises(
        errors.UnknownHandle, match=r"sqlite3.*psycopg.*asyncpg.*SQLAlchemy.*Django"
    ) as raised:
        INBOX.once(handle, "evt-1")
    assert isinstance(raised.value, TypeError)
    with pytest.raises(errors.UnknownHandle):
        INBOX.claim_many(handle, [])


def test_a_subclass_of_a_known_handle_is_known(guard_sqlite_path: str) -> None:
    class Mine(sqlite3.Connection):
        pass

    with closing(sqlite3.connect(guard_sqlite_path, factory=Mine)) as connection:
        with INBOX.once(connection, "evt-1") as claim:
            assert claim.first


@pytest.mark.parametrize("message_id", ["", "a\0b", "x" * 513, "\ud800", None, 7, b"bytes"])
def test_what_can_not_be_an_id_is_refused(guard_sqlite_path: str, message_id: Any) -> None:
    with closing(sqlite3.connect(guard_sqlite_path)) as connection:
        with pytest.raises(errors.MessageError):
            INBOX.once(connection, message_id)
        with pytest.raises(errors.MessageError):
            INBOX.once(connection, "evt-1", source="s" * 513)
        with pytest.raises(errors.MessageError):
            INBOX.once(connection, "evt-1", type="t" * 256)
        with INBOX.once(connection, "x" * 512, source="y" * 512, type="z" * 255) as claim:
            assert claim.first


@pytest.mark.parametrize("consumer", ["", "a\0b", "x" * 64, None])
def test_what_can_not_be_a_consumer_is_refused(consumer: Any) -> None:
    with pytest.raises(errors.ConfigError):
        Inbox(consumer)
    with pytest.raises(errors.ConfigError, match="schema"):
        Inbox("billing", schema='a"; drop table x')


_LAZY = """
import sqlite3, sys
from oncebox.drivers.sqlite import split
from oncebox.engines.migrations import statements
from oncebox.inbox import Inbox
connection = sqlite3.connect(":memory:")
for text in statements("sqlite"):
    for statement in split(text):
        connection.execute(statement)
with Inbox("billing").once(connection, "evt-1") as claim:
    assert claim.first
for name in ("psycopg", "asyncpg", "sqlalchemy", "django", "aiosqlite"):
    assert name not in sys.modules, name
"""


def test_no_driver_is_imported_but_the_handles_own() -> None:
    done = subprocess.run([sys.executable, "-c", _LAZY], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
