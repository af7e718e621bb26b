"""pgqueuer: enqueue in bulk, dequeue in batches, handlers as tasks of one loop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.models import Job
from protocol import Counter, Held, Message, serve

BATCH = int(os.environ.get("PEER_BATCH", "100"))
CONNECTIONS = int(os.environ.get("PEER_CONNECTIONS", "8"))
ENQUEUE = 500


async def main(url: str) -> None:
    counter = Counter()
    held = Held([await asyncpg.connect(url) for _ in range(CONNECTIONS)])
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    if not await queries.schema_is_installed():
        await queries.install()
    worker = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

    @worker.entrypoint("payment")
    async def handle(job: Job) -> None:
        assert job.payload is not None
        message_id, payload = json.loads(job.payload)
        await held.apply(message_id, payload)
        counter.done()

    async def send(messages: list[Message]) -> None:
        for start in range(0, len(messages), ENQUEUE):
            chunk = [json.dumps(message).encode() for message in messages[start : start + ENQUEUE]]
            await queries.enqueue(["payment"] * len(chunk), list(chunk), [0] * len(chunk))

    running = asyncio.create_task(worker.run(batch_size=BATCH))
    await serve(send, counter)
    worker.shutdown.set()
    await running


logging.disable(logging.ERROR)
uvloop.run(main(sys.argv[1]))
