"""Orders: an order service that consumes two kinds of events, from Kafka or, by changing one line, from RabbitMQ.

    oncebox run examples.orders:app               the service, until Ctrl-C; add --workers 4 for four processes
    python examples/orders.py                     sends a few events and runs until they are handled

It needs a broker: KAFKA names one (localhost:9092 else), or AMQP_URL (amqp://localhost). Kafka has to know the
topic `shop-events`; RabbitMQ's queue is made. ONCEBOX_DATABASE_URL names the database, a SQLite file else.

Two services publish, nobody orders their messages among each other, and each of them sends some twice. A
payment that overtakes its order is tried again later, and what comes twice has one effect.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from oncebox import App, Backoff, Dead, Message, Retry
from oncebox.brokers.kafka import Kafka
from oncebox.brokers.rabbitmq import RabbitMQ
from oncebox.schema import migrate

URL = os.environ.get("ONCEBOX_DATABASE_URL") or f"sqlite:///{tempfile.mkdtemp()}/orders.db"

# Handlers get their driver's own connection. Your app has one database and needs one of these lines.
if TYPE_CHECKING or URL.startswith("sqlite"):
    from sqlite3 import Connection, connect
else:
    from psycopg import Connection, connect

kafka = Kafka(os.environ.get("KAFKA", "localhost:9092"))
rabbit = RabbitMQ(os.environ.get("AMQP_URL", "amqp://localhost"))

# Where events come from, and where the scene below sends them, as the two other services would.
events, others = kafka.topics("shop-events", group="orders"), kafka.topic("shop-events")
# RabbitMQ: events, others = rabbit.queue("shop-events", create=True), rabbit.exchange("", routing_key="shop-events")

app = App(URL)
orders = app.consumer("orders", events, retry=Backoff(attempts=12, base_seconds=0.2, max_seconds=60))


def sql(text: str) -> str:
    """The two drivers spell placeholders differently; nothing else here does."""
    return text if URL.startswith("sqlite") else text.replace("?", "%s")


class OrderCreated(msgspec.Struct):
    """What the shop says."""

    order: str
    total_cents: int


class PaymentCompleted(msgspec.Struct):
    """What the payment provider says."""

    order: str
    amount_cents: int


@orders.handler("order.created")
def created(event: OrderCreated, conn: Connection) -> None:
    """An order that waits for its money."""
    conn.execute(
        sql("INSERT INTO shop_order (id, total_cents, paid_cents) VALUES (?, ?, 0)"),
        (event.order, event.total_cents),
    )


@orders.handler("payment.completed")
def paid(event: PaymentCompleted, conn: Connection) -> None:
    """Money for an order. It may come before the order does: then it comes again."""
    row = conn.execute(
        sql(
            "UPDATE shop_order SET paid_cents = paid_cents + ? WHERE id = ? RETURNING total_cents - paid_cents"
        ),
        (event.amount_cents, event.order),
    ).fetchone()
    if row is None:
        raise Retry(f"no order {event.order} yet")
    if row[0] < 0:
        raise Dead(f"order {event.order} would be paid twice over")


def set_up() -> None:
    """The tables. A real service does this in its migrations."""
    migrate(URL)
    with closing(connect(URL.removeprefix("sqlite:///"))) as conn:
        # No unique key: a second effect would show here as a second row.
        conn.execute(
            "CREATE TABLE IF NOT EXISTS shop_order"
            " (id text NOT NULL, total_cents bigint NOT NULL, paid_cents bigint NOT NULL)"
        )
        conn.commit()


def messages(count: int) -> list[Message]:
    """What the two others publish: payments first, and everything twice."""
    numbers = range(1, count + 1)
    payments = [
        Message(
            id=f"pay-{n}",
            source="payments",
            type="payment.completed",
            key=f"order-{n}",
            payload=PaymentCompleted(f"order-{n}", 100 * n),
        )
        for n in numbers
    ]
    placed = [
        Message(
            id=f"order-{n}-created",
            source="shop",
            type="order.created",
            key=f"order-{n}",
            payload=OrderCreated(f"order-{n}", 100 * n),
        )
        for n in numbers
    ]
    return [*payments, *placed, *payments, *placed]


def seen() -> tuple[int, int, int]:
    """Rows, orders among them, and those that are paid."""
    with closing(connect(URL.removeprefix("sqlite:///"))) as conn:
        row = conn.execute(
            "SELECT count(*), count(DISTINCT id), count(CASE WHEN paid_cents = total_cents THEN 1 END) FROM shop_order"
        ).fetchone()
    return int(row[0]), int(row[1]), int(row[2])


def wait_until_paid(count: int) -> None:
    """Look until every order is."""
    while seen()[2] < count:
        time.sleep(0.05)


set_up()


async def main(count: int = 20) -> None:
    """Publish as the two others would, and run until every order is paid."""
    async with app.running():
        await others.open()
        confirmations = await others.publish(messages(count))
        await others.close()
        assert not any(confirmations)
        await asyncio.to_thread(wait_until_paid, count)
    print("{} rows, {} orders, {} of them paid".format(*seen()))


if __name__ == "__main__":
    asyncio.run(main())
