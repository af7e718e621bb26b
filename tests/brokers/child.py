"""A consumer in a process of its own, to be killed: receives, acks the first, holds the rest."""

import asyncio
import os

from oncebox.brokers.remote import RemoteMemory


async def main() -> None:
    source = RemoteMemory(os.environ["MEMORY_ADDRESS"]).queue("payments")
    await source.open()
    deliveries = await source.receive(3)
    await source.ack(deliveries[:1])
    await source.flush()
    print("holding", len(deliveries) - 1, flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
