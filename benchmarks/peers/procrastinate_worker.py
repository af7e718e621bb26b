"""procrastinate: jobs deferred in bulk, one worker with several jobs at a time."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import asyncpg
import uvloop
from procrastinate import App, PsycopgConnector
from protocol import Counter, Held, Message, serve

CONCURRENCY = int(os.environ.get("PEER_CONCURRENCY", "16"))
CONNECTIONS = int(os.environ.get("PEER_CONNECTIONS", "8"))
DELETE = os.environ.get("PEER_DELETE", "always")
ENQUEUE = 500


async def main(url: str) -> None:
    counter = Counter()
    held = Held([await asyncpg.connect(url) for _ in range(CONNECTIONS)])
    app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=CONCURRENCY + 4))

    @app.task(name="payment")
    async def handle(message_id: str, payload: str) -> None:
        await held.apply(message_id, payload)
        counter.done()

    async def send(messages: list[Message]) -> None:
        for start in range(0, len(messages), ENQUEUE):
            chunk = messages[start : start + ENQUEUE]
            await handle.batch_defer_async(*({"message_id": m, "payload": p} for m, p in chunk))

    async with app.open_async():
        if not await app.check_connection_async():  # False: connected, but its tables are not there
            await app.schema_manager.apply_schema_async()
        running = asyncio.create_task(
            app.run_worker_async(
                concurrency=CONCURRENCY,
                delete_jobs=DELETE,
                fetch_job_polling_interval=0.1,
                install_signal_handlers=False,
            )
        )
        await serve(send, counter)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


logging.disable(logging.ERROR)
uvloop.run(main(sys.argv[1]))
