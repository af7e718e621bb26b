"""The guard on a connection of asyncpg's pool: two deliveries of one payment, one entry.

ONCEBOX_DATABASE_URL=postgresql://localhost/shop python examples/guard_asyncpg.py
"""

import asyncio
import os
from typing import Any

import asyncpg

from oncebox import Inbox
from oncebox.schema import migrate

URL = os.environ["ONCEBOX_DATABASE_URL"]
inbox = Inbox("billing")


async def deliver(pool: asyncpg.Pool, event_id: str, body: bytes) -> Any:
    # Outside of transaction() asyncpg commits every statement, and the guard refuses to claim.
    async with (
        pool.acquire() as connection,
        connection.transaction(),
        inbox.once(connection, event_id, source="payments", payload=body) as claim,
    ):
        if claim.first:
            await connection.execute("UPDATE guard_account SET balance = balance + 100 WHERE id = 'ada'")
            claim.result = {"credited": 100}
    return claim.result


async def scene() -> None:
    async with asyncpg.create_pool(URL, min_size=2, max_size=2) as pool:
        await pool.execute("CREATE TABLE guard_account (id text PRIMARY KEY, balance int NOT NULL)")
        await pool.execute("INSERT INTO guard_account VALUES ('ada', 0)")
        # At the same time: the second waits for the first, and then reads its result.
        both = await asyncio.gather(*(deliver(pool, "evt-42", b'{"amount": 100}') for _ in range(2)))
        print(*both, sep="\n")
        balance = await pool.fetchval("SELECT balance FROM guard_account")
        await pool.execute("DROP TABLE guard_account")
    print(f"ada: {balance}")


def main() -> None:
    migrate(URL.replace("postgresql://", "postgresql+asyncpg://"))
    asyncio.run(scene())


if __name__ == "__main__":
    main()
