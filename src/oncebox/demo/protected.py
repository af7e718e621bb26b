"""The demo's consumer, as a user of oncebox writes it: one handler per kind of connection.

Annotations are real here (no `from __future__ import annotations`), because psycopg is imported only
where it is needed: the demo on SQLite runs without it.
"""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from oncebox.app import App
from oncebox.brokers.remote import RemoteMemory
from oncebox.consumer import Consumer
from oncebox.demo.order import QUEUE, Order
from oncebox.demo.place import Place
from oncebox.demo.schedule import MESSAGE_TYPE, PaymentCaptured

HEARTBEAT_SECONDS = 0.5
LAPSE_SECONDS = 2.0
"""How soon a killed worker is known to be dead. The default of 10 s suits services, not a demo of 10 s."""


def register(billing: Consumer, place: Place) -> None:
    """Give the consumer its handler."""
    statement = place.charge_sql("oncebox")
    if place.database.dialect == "sqlite":

        @billing.handler(MESSAGE_TYPE)
        def charge(payment: PaymentCaptured, conn: sqlite3.Connection) -> None:
            conn.execute(statement, payment.row)

    else:
        import psycopg

        @billing.handler(MESSAGE_TYPE)
        def charge_on_postgres(payment: PaymentCaptured, conn: psycopg.Connection[Any]) -> None:
            conn.execute(statement.encode(), payment.row)


@asynccontextmanager
async def working_with_oncebox(order: Order) -> AsyncIterator[None]:
    """The usual handler's charge as a handler of oncebox, at work for the length of the block."""
    app = App(
        order.place.url,
        schema=order.place.schema,
        config=order.config,
        heartbeat_seconds=HEARTBEAT_SECONDS,
        lapse_seconds=LAPSE_SECONDS,
    )
    source = RemoteMemory(order.address).queue(QUEUE)
    # A payment that was in hand at several kills is not to blame for them, as it would be in a service.
    billing = app.consumer("billing", source, mode="inline", concurrency=1, crash_limit=1_000_000)
    register(billing, order.place)
    async with app.running():
        yield
