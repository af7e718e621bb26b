"""Payments: charge an account and write its receipt, once, however often the message comes.

    python examples/payments.py                   a short scene, on a SQLite file of its own
    oncebox run examples.payments:app             the same app as a service, until Ctrl-C

ONCEBOX_DATABASE_URL names a PostgreSQL database, or a SQLite file to keep. Several processes need it:
without it each has a file, and so a ledger, of its own.

Inline mode: the message is acked after its effects are committed. What goes out to the world (the
receipt's e-mail) is not sent here. It is written down in the same transaction, with a key that stays
the same on every attempt, for a mailer to send.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec

from oncebox import App, Backoff, Dead, Message, Tx
from oncebox.brokers.memory import Memory
from oncebox.identity import derived
from oncebox.message import MessageKey
from oncebox.schema import migrate

URL = os.environ.get("ONCEBOX_DATABASE_URL") or f"sqlite:///{tempfile.mkdtemp()}/payments.db"

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
billing = app.consumer("billing", broker.queue("payments"), retry=Backoff(attempts=5))


class PaymentCaptured(msgspec.Struct):
    """What the payment provider reports."""

    payment: str
    account: str
    amount_cents: int
    email: str


@billing.handler("payment.captured")
def captured(payment: PaymentCaptured, conn: Connection, tx: Tx) -> dict[str, Any]:
    """Charge, enter, and ask for a receipt: three rows that are committed together, with the claim."""
    charged = conn.execute(
        sql("UPDATE account SET balance_cents = balance_cents - ? WHERE id = ? RETURNING balance_cents"),
        (payment.amount_cents, payment.account),
    ).fetchone()
    if charged is None:
        # No number of attempts makes the account appear. The message is kept, and visible, as dead.
        raise Dead("no such account")
    conn.execute(
        sql("INSERT INTO entry (payment, account, amount_cents) VALUES (?, ?, ?)"),
        (payment.payment, payment.account, payment.amount_cents),
    )
    key = MessageKey(tx.consumer, tx.message.source, tx.message.id)
    conn.execute(
        sql("INSERT INTO receipt (payment, email, idempotency_key) VALUES (?, ?, ?)"),
        (payment.payment, payment.email, derived(key, "receipt")),
    )
    return {"balance_cents": charged[0]}


def set_up() -> None:
    """The tables, and two customers. A real service does this in its migrations."""
    migrate(URL)
    with closing(connect(URL.removeprefix("sqlite:///"))) as conn:
        for table in (
            "account (id text PRIMARY KEY, balance_cents bigint NOT NULL)",
            # No unique key on payment: a second charge would show here as a second row.
            "entry (payment text NOT NULL, account text NOT NULL, amount_cents bigint NOT NULL)",
            "receipt (payment text NOT NULL, email text NOT NULL, idempotency_key text NOT NULL)",
        ):
            conn.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        conn.execute("INSERT INTO account VALUES ('ada', 10000), ('ben', 10000) ON CONFLICT DO NOTHING")
        conn.commit()


def captures() -> list[Message]:
    """Five payments, and one for an account that nobody has."""
    accounts = ("ada", "ben", "ada", "ben", "ada", "nobody")
    return [
        Message(
            id=f"evt-{n}",
            source="payments",
            type="payment.captured",
            payload=PaymentCaptured(f"pay-{n}", account, 100 * n, f"{account}@example.com"),
        )
        for n, account in enumerate(accounts, 1)
    ]


set_up()
# Where a broker would bring messages, this one has them already: each of them three times.
broker.put("payments", *captures(), duplicates=2)


async def main() -> None:
    """Handle everything; then again, as if the broker had lost every ack."""
    async with app.running():
        await broker.drained("payments")
        broker.put("payments", *captures())
        await broker.drained("payments")
    with closing(connect(URL.removeprefix("sqlite:///"))) as conn:
        for account, balance in conn.execute("SELECT id, balance_cents FROM account ORDER BY id").fetchall():
            print(f"{account}: {balance / 100:.2f}")
        entries, charged = conn.execute("SELECT count(*), count(DISTINCT payment) FROM entry").fetchone()
        receipts = conn.execute("SELECT count(*) FROM receipt").fetchone()[0]
    print(f"{charged} payments, {entries} entries, {receipts} receipts")
    print(f"deliveries: {broker.stats()['payments'].delivered}")


if __name__ == "__main__":
    asyncio.run(main())
