"""One worker process of the demo: `python -m oncebox.demo.worker SIDE`, its order on standard input.

The first line of standard input is the order; its end is the word to stop, which also comes when the
parent dies. The order is not an argument, since it holds the broker's secret and the database's password.
The side is one, so that a spare worker can load all it needs before its order comes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from oncebox.brokers.remote import RemoteMemory, RemoteSource
from oncebox.demo.order import QUEUE, READY, STOP_SECONDS, Order
from oncebox.demo.schedule import PaymentCaptured

PREFETCH = 10


async def consume_as_usual(source: RemoteSource, order: Order) -> None:
    """The usual handler: charge, commit, then ack. Correct, until something happens in between."""
    connection = order.place.connect()
    statement = order.place.charge_sql(order.side)
    while True:
        for delivery in await source.receive(PREFETCH):
            payment = msgspec.json.decode(delivery.body, type=PaymentCaptured)
            if order.ack_first:
                await source.ack([delivery])
                await asyncio.sleep(0)
            connection.execute(statement, payment.row)
            if not order.ack_first:
                await source.ack([delivery])
                # The ack leaves now. Acks of a whole batch would travel together otherwise, and a kill
                # would double more payments than this handler deserves.
                await asyncio.sleep(0)


@asynccontextmanager
async def working_as_usual(order: Order) -> AsyncIterator[asyncio.Task[None]]:
    """The usual handler at work for the length of the block."""
    source = RemoteMemory(order.address).queue(QUEUE)
    await source.open()
    task = asyncio.create_task(consume_as_usual(source, order))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await source.close()


Working = Callable[[Order], AbstractAsyncContextManager[asyncio.Task[None] | None]]


def load(side: str) -> Working:
    """What a side works with. oncebox itself is loaded only where it is used."""
    if side == "unprotected":
        return working_as_usual
    from oncebox.demo.protected import working_with_oncebox

    return working_with_oncebox


async def work(order: Order, working: Working) -> None:
    """Work until told to stop. An error of the usual handler ends the process, as it would in a service."""
    stop = asyncio.Event()
    _listen_for_the_end(asyncio.get_running_loop(), stop)
    async with working(order) as task:
        os.write(1, READY + b"\n")
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({stopped, task or stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task is not None and task.done():
            stopped.cancel()
            task.result()


def _listen_for_the_end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    def listen() -> None:
        # Not through sys.stdin: a thread that holds its lock at exit aborts the interpreter.
        while os.read(0, 4096):
            pass
        bound = threading.Timer(STOP_SECONDS, os._exit, (1,))
        bound.daemon = True
        bound.start()
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=listen, name="demo-end", daemon=True).start()


def _read_order() -> Order:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            raise SystemExit("no order on standard input")
        line += piece
    return msgspec.json.decode(line, type=Order)


def main() -> None:
    """The process."""
    working = load(sys.argv[1])
    asyncio.run(work(_read_order(), working))


if __name__ == "__main__":
    main()
