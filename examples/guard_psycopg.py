"""The guard on psycopg connections, blocking and async: two deliveries of one payment, one entry.

ONCEBOX_DATABASE_URL=postgresql://localhost/shop python examples/guard_psycopg.py
"""

import asyncio
import os
from typing import Any

import psycopg

from oncebox import Inbox
from oncebox.schema import migrate

URL = os.environ["ONCEBOX_DATABASE_URL"]
CREDIT = "UPDATE guard_account SET balance = balance + 100 WHERE id = 'ada'"
inbox = Inbox("billing")


def deliver(connection: psycopg.Connection[Any], event_id: str, body: bytes) -> Any:
    with connection.transaction(), inbox.once(connection, event_id, source="payments", payload=body) as claim:
        if claim.first:
            connection.execute(CREDIT)
            claim.result = {"credited": 100}
    return claim.result


async def deliver_async(connection: psycopg.AsyncConnection[Any], event_id: str, body: bytes) -> Any:
    async with (
        connection.transaction(),
        inbox.once(connection, event_id, source="payments", payload=body) as claim,
    ):
        if claim.first:
            await connection.execute(CREDIT)
            claim.result = {"credited": 100}
    return claim.result


async def again() -> None:
    async with await psycopg.AsyncConnection.connect(URL) as connection:
        print(await deliver_async(connection, "evt-42", b'{"amount": 100}'))


def main() -> None:
    migrate(URL)
    with psycopg.connect(URL) as connection:
        connection.execute("CREATE TABLE guard_account (id text PRIMARY KEY, balance int NOT NULL)")
        connection.execute("INSERT INTO guard_account VALUES ('ada', 0)")
        connection.commit()
        print(deliver(connection, "evt-42", b'{"amount": 100}'))
    asyncio.run(again())
    with psycopg.connect(URL) as connection:
        (balance,) = connection.execute("SELECT balance FROM guard_account").fetchone() or (None,)
        connection.execute("DROP TABLE guard_account")
    print(f"ada: {balance}")


if __name__ == "__main__":
    main()
