"""The demo's handlers, as a user of oncebox writes them: one per kind of connection.

Annotations are real here (no `from __future__ import annotations`), because psycopg is imported only
where it is needed: the demo on SQLite runs without it.
"""

import sqlite3
from typing import Any

from oncebox.consumer import Consumer
from oncebox.demo.place import Place
from oncebox.demo.schedule import PaymentCaptured

MESSAGE_TYPE = "payment.captured"


def values(payment: PaymentCaptured) -> tuple[str, int, int]:
    """A charge's row."""
    return payment.id, payment.account, payment.cents


def register(billing: Consumer, place: Place) -> None:
    """Give the consumer its handler."""
    statement = place.charge_sql("oncebox")
    if place.database.dialect == "sqlite":

        @billing.handler(MESSAGE_TYPE)
        def charge(payment: PaymentCaptured, conn: sqlite3.Connection) -> None:
            conn.execute(statement, values(payment))

    else:
        import psycopg

        @billing.handler(MESSAGE_TYPE)
        def charge_on_postgres(payment: PaymentCaptured, conn: psycopg.Connection[Any]) -> None:
            conn.execute(statement.encode(), values(payment))
