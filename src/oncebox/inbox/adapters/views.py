"""How each client library shows its transaction, for free. Only attributes are read."""

from __future__ import annotations

from typing import Any

from oncebox.core.guard import View

_ACTIVE, _INTRANS, _INERROR = 1, 2, 3
"""libpq's transaction states; psycopg and psycopg2 number them alike."""


def libpq(raw: Any) -> View:
    """psycopg and psycopg2."""
    if raw.closed:
        return View(open=False)
    info = raw.info
    status = int(info.transaction_status)
    if status == _ACTIVE:
        # A pipeline has not been answered yet: without a mark, the flow asks the server.
        return View(open=True)
    return View(
        open=status in (_INTRANS, _INERROR),
        failed=status == _INERROR,
        mark=info.parameter_status("application_name") or "",
    )


def psycopg(raw: Any) -> View:
    """The same for psycopg alone, which lets one ask libpq itself."""
    pgconn = raw.pgconn
    status = pgconn.transaction_status
    if status != _INTRANS or raw.closed:
        return libpq(raw)
    return View(open=True, mark=(pgconn.parameter_status(b"application_name") or b"").decode())


def asyncpg(raw: Any) -> View:
    """asyncpg. It does not say whether a transaction has failed, but failing takes the mark away."""
    if raw.is_closed() or not raw.is_in_transaction():
        return View(open=False)
    return View(open=True, mark=getattr(raw.get_settings(), "application_name", ""))


def sqlite(raw: Any) -> View:
    """sqlite3 and aiosqlite; a closed connection has no transaction."""
    try:
        return View(open=bool(raw.in_transaction))
    except Exception:  # each library has its own error for "closed"
        return View(open=False)
