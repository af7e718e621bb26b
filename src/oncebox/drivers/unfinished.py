"""What a handler left unfinished on a SQLite connection."""

from __future__ import annotations

import gc
import sqlite3


def end_unfinished(raw: sqlite3.Connection) -> None:
    """Close the cursors of a connection that was interrupted. In the connection's own thread.

    An interrupt stays in force until no statement is unfinished, so a SELECT that somebody still holds a cursor
    of would have ROLLBACK interrupted as well; and closing the connection would not give its lock back. Slow: it
    looks through everything that lives.
    """
    for each in gc.get_referrers(raw):
        if isinstance(each, sqlite3.Cursor):
            each.close()
