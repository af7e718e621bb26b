"""One worker process of the demo: `python -m oncebox.demo.worker`, its order on standard input.

The first line of standard input is the order; its end is the word to stop, which also comes when the
parent dies. The order is not an argument, since it holds the broker's secret and the database's password.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import msgspec

from oncebox.app import App
from oncebox.brokers.remote import RemoteMemory, RemoteSource
from oncebox.demo.handlers import register, values
from oncebox.demo.place import Place
from oncebox.demo.schedule import PaymentCaptured

QUEUE = "payments"
READY = b"ready"
PREFETCH = 10
STOP_SECONDS = 10.0
HEARTBEAT_SECONDS = 0.5
LAPSE_SECONDS = 2.0
"""How soon a killed worker is known to be dead. The default of 10 s suits services, not a demo of 20 s."""

Side = Literal["unprotected", "oncebox"]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told: which handler, where its messages come from, where its charges go."""

    side: Side
    address: str
    place: Place
    config: str
    """An empty policy file: an `oncebox.toml` in the user's folder is about the user's app."""
    ack_first: bool = False


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
            connection.execute(statement, values(payment))
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


@asynccontextmanager
async def working_with_oncebox(order: Order) -> AsyncIterator[None]:
    """The same charge as a handler of oncebox."""
    app = App(
        order.place.url,
        schema=order.place.schema,
        config=order.config,
        heartbeat_seconds=HEARTBEAT_SECONDS,
        lapse_seconds=LAPSE_SECONDS,
    )
    # A payment that was in hand at several kills is not to blame for them, as it would be in a service.
    billing = app.consumer(
        "billing",
        RemoteMemory(order.address).queue(QUEUE),
        mode="inline",
        concurrency=1,
        crash_limit=1_000_000,
    )
    register(billing, order.place)
    async with app.running():
        yield


async def work(order: Order) -> None:
    """Work until told to stop. An error of the usual handler ends the process, as it would in a service."""
    stop = asyncio.Event()
    _listen_for_the_end(asyncio.get_running_loop(), stop)
    if order.side == "oncebox":
        async with working_with_oncebox(order):
            _say(READY)
            await stop.wait()
        return
    async with working_as_usual(order) as task:
        _say(READY)
        stopped = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
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


def _say(word: bytes) -> None:
    os.write(1, word + b"\n")


def main() -> None:
    """The process."""
    asyncio.run(work(_read_order()))


if __name__ == "__main__":
    main()
