"""SQLite, through any library: a savepoint stands for the transaction, and a second reader answers
whether a row is committed."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncebox.core.guard import Held, Hold

if TYPE_CHECKING:
    from oncebox.inbox.adapters.base import Adapter

_lock = threading.Lock()
_open: weakref.WeakSet[Adapter] = weakref.WeakSet()
"""Blocks that hold a key right now. (A sqlite3 connection can't be referenced weakly itself.)"""


def hold(adapter: Adapter, step: Hold) -> Any:
    """Set the savepoint, after the claim: before it, SAVEPOINT would open a transaction of its own,
    which its release would commit."""
    adapter.holds = step.key
    with _lock:
        _open.add(adapter)
    return adapter.send([(f"SAVEPOINT {step.savepoint}", None)])


def let_go(adapter: Adapter) -> None:
    """The block is over."""
    with _lock:
        _open.discard(adapter)


def in_open_block(adapter: Adapter, step: Held) -> bool:
    """Whether a block further out, on the same connection, holds the key."""
    with _lock:
        blocks = [block for block in _open if block.raw is adapter.raw and block.queries is adapter.queries]
    return any(block.holds == step.key for block in blocks)


def readable(adapter: Adapter) -> bool:
    """Whether the database may be opened a second time: only by the same copy of the SQLite library.

    Another copy in the same process would drop this one's file locks when it closes the file.
    """
    return isinstance(adapter.raw, sqlite3.Connection) or type(adapter.raw).__module__.startswith("aiosqlite")


def uncommitted(databases: list[tuple[Any, ...]], lookup: tuple[str, Any]) -> bool:
    """Whether a row that we see is invisible to everybody else, and so is our own transaction's.

    False where nobody else can look: a database in memory, a file under an exclusive lock.
    """
    path = next((os.fsdecode(row[2]) for row in databases if row[1] in ("main", b"main")), "")
    if not path:
        return False
    try:
        with closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True, timeout=0)) as reader:
            return not reader.execute(*lookup).fetchall()
    except sqlite3.Error:
        return False
