"""The guard on a sqlite3 connection: two deliveries of one payment, one entry.

python examples/guard_sqlite3.py
"""

import sqlite3
import tempfile
from contextlib import closing
from typing import Any

from oncebox import Inbox
from oncebox.schema import migrate

FILE = f"{tempfile.mkdtemp()}/shop.db"
inbox = Inbox("billing")


def deliver(connection: sqlite3.Connection, event_id: str, body: bytes) -> Any:
    # Python opens the transaction at the first INSERT, which is the claim; `with connection` ends it.
    with connection, inbox.once(connection, event_id, source="payments", payload=body) as claim:
        if claim.first:
            connection.execute("UPDATE account SET balance = balance + 100 WHERE id = 'ada'")
            claim.result = {"credited": 100}
    return claim.result


def main() -> None:
    migrate(f"sqlite:///{FILE}")
    with closing(sqlite3.connect(FILE)) as connection:
        connection.execute("CREATE TABLE account (id TEXT PRIMARY KEY, balance INTEGER NOT NULL)")
        connection.execute("INSERT INTO account VALUES ('ada', 0)")
        connection.commit()
        for _ in range(2):
            print(deliver(connection, "evt-42", b'{"amount": 100}'))
        (balance,) = connection.execute("SELECT balance FROM account").fetchone()
    print(f"ada: {balance}")


if __name__ == "__main__":
    main()
