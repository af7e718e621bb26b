"""Integration events: store and ack at once, then process in batches, by several processors side by side.

    python examples/integration_events.py                        a short scene, on a SQLite file of its own
    oncebox run examples.integration_events:app                  the same app as a service, until Ctrl-C
    oncebox run examples.integration_events:app --workers 4      several processes; set ONCEBOX_DATABASE_URL

ONCEBOX_DATABASE_URL names a PostgreSQL database, or a SQLite file to keep. Several processes need it:
without it each has a file, and so a ledger, of its own.

Stored mode: receiving is one insert for everything that has arrived, and then the broker is done. The
database is the queue. Processors take what is due, up to `batch` at a time and never the same row twice,
and a list handler writes all of it with one statement. Batch, effects and the end of the messages are
one transaction.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from oncebox import App, Message
from oncebox.brokers.memory import Memory
from oncebox.schema import migrate

URL = os.environ.get("ONCEBOX_DATABASE_URL") or f"sqlite:///{tempfile.mkdtemp()}/events.db"
EVENTS = int(os.environ.get("EVENTS", "5000"))

# Handlers get their driver's own connection. Your app has one database and needs one of these lines.
if TYPE_CHECKING or URL.startswith("sqlite"):
    from sqlite3 import Connection, connect
else:
    from psycopg import Connection, connect


def sql(text: str) -> str:
    """The two drivers spell placeholders differently; nothing else here does."""
    return text if URL.startswith("sqlite") else text.replace("?", "%s")


broker = Memory()
app = App(URL)
orders = app.consumer(
    "order-view",
    broker.queue("integration-events"),
    mode="stored",
    batch=1000,
    # Threads of this process. SQLite has one writer, so there they take turns.
    concurrency=3,
)


class OrderCreated(msgspec.Struct):
    """What another service says about its orders."""

    order: int
    customer: str
    total_cents: int


@orders.batch_handler("order.created")
def project(events: list[OrderCreated], conn: Connection) -> None:
    """One statement for the whole batch. If one event fails it, each of them is run alone."""
    processor = f"{os.getpid()}/{threading.current_thread().name}"
    conn.cursor().executemany(
        sql("INSERT INTO order_view (order_id, customer, total_cents, processor) VALUES (?, ?, ?, ?)"),
        [(event.order, event.customer, event.total_cents, processor) for event in events],
    )


def set_up() -> None:
    """The tables. A real service does this in its migrations."""
    migrate(URL)
    with closing(connect(URL.removeprefix("sqlite:///"))) as conn:
        # No unique key: a second effect would show here as a second row.
        conn.execute(
            "CREATE TABLE IF NOT EXISTS order_view (order_id bigint NOT NULL, customer text NOT NULL,"
            " total_cents bigint NOT NULL, processor text NOT NULL)"
        )
        conn.commit()


def events() -> list[Message]:
    """What the other service publishes."""
    return [
        Message(
            id=f"order-{n}-created",
            source="shop",
            type="order.created",
            payload=OrderCreated(n, f"customer-{n % 100}", 100 * n),
        )
        for n in range(1, EVENTS + 1)
    ]


set_up()
# Where a broker would bring messages, this one has them already: each of them twice.
broker.put("integration-events", *events(), duplicates=1)


def seen() -> tuple[int, int, int]:
    """Rows, orders among them, and the processors that wrote them."""
    with closing(connect(URL.removeprefix("sqlite:///"))) as conn:
        row = conn.execute(
            "SELECT count(*), count(DISTINCT order_id), count(DISTINCT processor) FROM order_view"
        ).fetchone()
    return int(row[0]), int(row[1]), int(row[2])


def wait_until_processed() -> None:
    """Look until every order is there."""
    while seen()[1] < EVENTS:
        time.sleep(0.05)


async def main() -> None:
    """Receive everything, then wait until the last of it is processed."""
    async with app.running():
        await broker.drained("integration-events")
        print(f"{broker.stats()['integration-events'].acked} deliveries stored and acked")
        await asyncio.to_thread(wait_until_processed)
    rows, orders_seen, processors = seen()
    print(f"{orders_seen} orders, {rows} rows, written by {processors} processors")


if __name__ == "__main__":
    asyncio.run(main())
