"""Inventory: reserve stock for orders, once each; an order that can't be filled is kept for a person.

    python examples/inventory.py                  a short scene, on a SQLite file of its own
    oncebox run examples.inventory:app            the same app as a service, until Ctrl-C

ONCEBOX_DATABASE_URL names a PostgreSQL database, or a SQLite file to keep. Several processes need it:
without it each has a file, and so a ledger, of its own.

Too little stock is an answer, not an accident: trying again would give the same one. `terminal` says so,
and such a message is dead at its first attempt, with everything needed to send it again after a delivery
of goods. Any other error is tried again.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncebox import App, Message
from oncebox.brokers.memory import Memory
from oncebox.schema import migrate

URL = os.environ.get("ONCEBOX_DATABASE_URL") or f"sqlite:///{tempfile.mkdtemp()}/inventory.db"

# Handlers get their driver's own connection. Your app has one database and needs one of these lines.
if TYPE_CHECKING or URL.startswith("sqlite"):
    from sqlite3 import Connection, connect
else:
    from psycopg import Connection, connect


def sql(text: str) -> str:
    """The two drivers spell placeholders differently; nothing else here does."""
    return text if URL.startswith("sqlite") else text.replace("?", "%s")


class InsufficientStock(Exception):
    """There is less of it than was ordered."""


broker = Memory()
app = App(URL)
inventory = app.consumer("inventory", broker.queue("orders"), terminal=(InsufficientStock,))


@dataclass
class Line:
    """One line of an order."""

    sku: str
    quantity: int


@dataclass
class OrderPlaced:
    """An order as the shop sends it."""

    order: str
    lines: list[Line]


@inventory.handler("order.placed")
def reserve(order: OrderPlaced, conn: Connection) -> dict[str, int]:
    """Reserve every line, or nothing: what a failed line leaves behind is rolled back with its claim."""
    # Rows are locked in one order by everybody, so that two orders can't wait for each other.
    for line in sorted(order.lines, key=lambda line: line.sku):
        reserved = conn.execute(
            sql("UPDATE stock SET reserved = reserved + ? WHERE sku = ? AND on_hand - reserved >= ?"),
            (line.quantity, line.sku, line.quantity),
        )
        if reserved.rowcount == 0:
            raise InsufficientStock(f"not enough of sku {line.sku}")
        conn.execute(
            sql("INSERT INTO reservation (order_id, sku, quantity) VALUES (?, ?, ?)"),
            (order.order, line.sku, line.quantity),
        )
    return {"lines": len(order.lines)}


def set_up() -> None:
    """The tables, and something on the shelves. A real service does this in its migrations."""
    migrate(URL)
    with closing(connect(URL.removeprefix("sqlite:///"))) as conn:
        conn.execute(
            "CREATE TABLE IF NOT EXISTS stock"
            " (sku text PRIMARY KEY, on_hand integer NOT NULL, reserved integer NOT NULL DEFAULT 0)"
        )
        # No unique key: a second reservation would show here as a second row.
        conn.execute(
            "CREATE TABLE IF NOT EXISTS reservation"
            " (order_id text NOT NULL, sku text NOT NULL, quantity integer NOT NULL)"
        )
        conn.execute(
            "INSERT INTO stock (sku, on_hand) VALUES ('kettle', 4), ('teapot', 10) ON CONFLICT DO NOTHING"
        )
        conn.commit()


def orders() -> list[Message]:
    """Three orders for two kettles each, of which there are four; the teapots would do for all."""
    lines = [Line("teapot", 1), Line("kettle", 2)]
    return [
        Message(
            id=f"order-{n}-placed", source="shop", type="order.placed", payload=OrderPlaced(f"{n}", lines)
        )
        for n in (1, 2, 3)
    ]


set_up()
# Where a broker would bring messages, this one has them already: each of them three times.
broker.put("orders", *orders(), duplicates=2)


async def main() -> None:
    """Handle everything, then look at the shelves and at what is left for a person."""
    async with app.running():
        await broker.drained("orders")
    dead = "oncebox_dead" if URL.startswith("sqlite") else "oncebox.dead"
    with closing(connect(URL.removeprefix("sqlite:///"))) as conn:
        for row in conn.execute("SELECT sku, on_hand, reserved FROM stock ORDER BY sku").fetchall():
            print(f"{row[0]}: {row[1]} on hand, {row[2]} reserved")
        for row in conn.execute(f"SELECT message_id, reason, error FROM {dead}").fetchall():  # noqa: S608
            print(f"{row[0]} is dead: {row[1]} ({row[2]})")


if __name__ == "__main__":
    asyncio.run(main())
