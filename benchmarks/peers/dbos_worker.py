"""DBOS: a workflow per message, its id the message's id; by queue, or called directly by threads."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
from dbos import DBOS, SetWorkflowID
from protocol import PSYCOPG, Counter, Message, serve

HOW = os.environ.get("PEER_HOW", "queue")
CONCURRENCY = int(os.environ.get("PEER_CONCURRENCY", "48"))
URL = sys.argv[1]
counter = Counter()
local = threading.local()


def connection() -> psycopg.Connection[Any]:
    """This thread's own, held."""
    if not hasattr(local, "conn"):
        local.conn = psycopg.connect(URL, prepare_threshold=1)
    return local.conn  # type: ignore[no-any-return]


@DBOS.workflow()
def handle(message_id: str, payload: str) -> None:
    """The exact effect in the workflow's body: a step around it would only add writes."""
    payment = json.loads(payload)
    conn = connection()
    if conn.execute(PSYCOPG[0], (message_id,)).rowcount == 1:
        assert conn.execute(PSYCOPG[1], (payment["amount"], payment["account"])).rowcount == 1
    conn.commit()
    counter.done()


async def main() -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": URL,
            "log_level": "CRITICAL",
            "sys_db_pool_size": CONCURRENCY + 4,
        }
    )
    DBOS.launch()
    queue = await DBOS.register_queue_async(
        "payments", worker_concurrency=CONCURRENCY, polling_interval_sec=0.01
    )
    threads = ThreadPoolExecutor(CONCURRENCY)
    loop = asyncio.get_running_loop()

    def direct(message: Message) -> None:
        with SetWorkflowID(message[0]):
            handle(*message)

    def enqueue(message: Message) -> None:
        with SetWorkflowID(message[0]):
            queue.enqueue(handle, *message)

    async def send(messages: list[Message]) -> None:
        one = direct if HOW == "direct" else enqueue
        await asyncio.gather(*(loop.run_in_executor(threads, one, message) for message in messages))

    await serve(send, counter)
    DBOS.destroy()
    os._exit(0)


logging.disable(logging.ERROR)
asyncio.run(main())
