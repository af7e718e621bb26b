"""Handlers for both engines: right ones, and ones that are wrong on purpose."""

import itertools
import os
import smtplib
import socket
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from oncebox import App, Consumer, Message, Tx

MESSAGE = Message(id="evt-1", source="shop", type="paid", payload={"payment": "p-1", "amount": 100})
Act = Callable[[dict[str, Any], Any, Tx], Any]


def mark(conn: Any) -> str:
    """How this driver writes a placeholder."""
    return "?" if isinstance(conn, sqlite3.Connection) else "%s"


def pay(payment: dict[str, Any], conn: Any, n: int = 1) -> None:
    """What a payment does to the shop."""
    at = mark(conn)
    conn.execute(f"UPDATE account SET balance = balance - {at} WHERE id = 'ada'", (payment["amount"],))
    conn.execute(f"INSERT INTO entry (payment, n) VALUES ({at}, {at})", (payment["payment"], n))


def handled_by(app: App, act: Act, **policy: Any) -> Consumer:
    """A consumer with this handler."""
    consumer = app.consumer("billing", **policy)
    if app.database.dialect == "sqlite":

        @consumer.handler("paid")
        def on_sqlite(payment: dict[str, Any], conn: sqlite3.Connection, tx: Tx) -> Any:
            return act(payment, conn, tx)
    else:

        @consumer.handler("paid")
        def on_postgres(payment: dict[str, Any], conn: psycopg.Connection, tx: Tx) -> Any:
            return act(payment, conn, tx)

    return consumer


def right(payment: dict[str, Any], conn: Any, tx: Tx) -> dict[str, str]:
    pay(payment, conn)
    return {"paid": payment["payment"]}


# Wrong: memory

counter = 0
numbers = itertools.count(1)
seen: set[str] = set()


def counting(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
    """A counter in memory."""
    global counter
    counter += 1
    pay(payment, conn, counter)


def counting_hidden(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
    """A counter that only its iterator knows."""
    pay({**payment, "payment": f"INV-{next(numbers):08}"}, conn)


def deduplicating_in_memory(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
    if payment["payment"] in seen:
        return
    seen.add(payment["payment"])
    pay(payment, conn)


# Wrong: its own commit


def committing(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
    pay(payment, conn)
    conn.commit()


def committing_elsewhere(url: str) -> Act:
    """Writes on a connection of its own (PostgreSQL)."""

    def act(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
        pay(payment, conn)
        with psycopg.connect(url, autocommit=True) as own:
            own.execute("INSERT INTO entry (payment, n) VALUES ('elsewhere', 1)")

    return act


def careful_by_hand(url: str) -> Act:
    """Idempotent by itself, nearly: what it notes first keeps a second try from doing the rest."""

    def act(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
        with psycopg.connect(url, autocommit=True) as own:
            if own.execute("SELECT 1 FROM entry WHERE payment = 'noted'").fetchone():
                return
            own.execute("INSERT INTO entry (payment, n) VALUES ('noted', 1)")
            own.execute("UPDATE account SET balance = balance - 100 WHERE id = 'ada'")

    return act


# Wrong: outside


def mailing(port: int) -> Act:
    def act(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
        pay(payment, conn)
        with smtplib.SMTP("127.0.0.1", port, timeout=10) as smtp:
            smtp.sendmail("shop@example.com", ["ada@example.com"], "Subject: paid\r\n\r\nThank you.")

    return act


def writing_a_file(path: Path) -> Act:
    def act(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
        pay(payment, conn)
        path.write_text("paid")

    return act


def starting_a_program(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
    pay(payment, conn)
    os.system("true")


def sending_on_an_open_connection(sock: socket.socket) -> Act:
    def act(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
        pay(payment, conn)
        sock.sendall(b"paid\n")

    return act


def sending_later(port: int) -> Act:
    """Leaves the call to a thread, which makes it when the transaction is over."""

    def call() -> None:
        threading.Event().wait(0.2)
        socket.create_connection(("127.0.0.1", port), timeout=10).close()

    def act(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
        pay(payment, conn)
        threading.Thread(target=call).start()

    return act


def recording(sent: list[str]) -> Act:
    """As with a mailer that a test has replaced by a list."""

    def act(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
        pay(payment, conn)
        sent.append(f"mail about {payment['payment']}")

    return act


# Wrong in ways that a clean delivery does not show


def reading_then_writing(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
    """Loses what another handler has written since it read."""
    (balance,) = conn.execute("SELECT balance FROM account WHERE id = 'ada'").fetchone()
    conn.execute(
        f"UPDATE account SET balance = {mark(conn)} WHERE id = 'ada'", (balance - payment["amount"],)
    )


def trusting_the_first_delivery(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
    """Takes a redelivery for a duplicate, which is what oncebox is for."""
    if tx.message.deliveries == 1:
        pay(payment, conn)


def alerting_at_the_second_try(port: int) -> Act:
    def act(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
        pay(payment, conn)
        if tx.message.deliveries > 1:
            socket.create_connection(("127.0.0.1", port), timeout=10).close()

    return act


def upserting_elsewhere(url: str) -> Act:
    """Idempotent, on a connection of its own: no row is doubled, but one is there after a rollback."""

    def act(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
        pay(payment, conn)
        with psycopg.connect(url, autocommit=True) as own:
            own.execute("INSERT INTO account VALUES ('ben', 0) ON CONFLICT DO NOTHING")

    return act


def writing_to_the_file_itself(path: str) -> Act:
    """A second connection to the same SQLite file."""

    def act(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
        pay(payment, conn)
        own = sqlite3.connect(path, timeout=0.1)
        try:
            own.execute("INSERT INTO entry (payment, n) VALUES ('own', 1)")
            own.commit()
        finally:
            own.close()

    return act
