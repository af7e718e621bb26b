"""Apps for `oncebox run` to run, and the broker they consume from.

A handler says that it has a message in hand by making a file, and holds it until another file allows it
to go on: what happens in between is decided by the test, not by the clock.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from oncebox import Message
from oncebox.brokers.memory import Memory
from oncebox.brokers.stored import QueueStats
from oncebox.core.steps import Op
from oncebox.drivers.database import Database
from oncebox.runtime.inspect import Reader, read_status
from oncebox.runtime.records import Record, read_message
from oncebox.schema import migrate

T = TypeVar("T")

_TOP = """\
import asyncio
import os
import time
from pathlib import Path

from oncebox import App, Message
from oncebox.brokers.remote import RemoteMemory

HERE = Path(__file__).parent
app = App(os.environ["SHOP_URL"], lapse_seconds=120, drain_seconds=60)
payments = RemoteMemory(os.environ["SHOP_BROKER"]).queue("payments")
billing = app.consumer("billing", payments, mode=os.environ["SHOP_MODE"], concurrency=1, timeout_seconds=60)


def begin(message):
    (HERE / f"pid-{message.id}.new").write_text(str(os.getpid()))
    (HERE / f"pid-{message.id}.new").rename(HERE / f"pid-{message.id}")


def may_go_on():
    return (HERE / "go").exists()


"""

HANDLERS = {
    "async": """\
@billing.handler("payment")
async def handle(payment: dict, message: Message) -> dict:
    begin(message)
    while not may_go_on():
        await asyncio.sleep(0.01)
    return {"paid": payment["amount"]}
""",
    "sync": """\
@billing.handler("payment")
def handle(payment: dict, message: Message) -> dict:
    begin(message)
    while not may_go_on():
        time.sleep(0.01)
    return {"paid": payment["amount"]}
""",
    "blocking": """\
@billing.handler("payment")
async def handle(payment: dict, message: Message) -> dict:
    begin(message)
    while not may_go_on():
        time.sleep(0.01)
    return {"paid": payment["amount"]}
""",
}


class Shop:
    """A folder with shop.py in it, a database with tables, and a queue of payments."""

    def __init__(self, folder: Path, url: str, mode: str, memory: Memory, address: str) -> None:
        self.folder = folder
        self.url = url
        self.memory = memory
        self.env = {"SHOP_URL": url, "SHOP_MODE": mode, "SHOP_BROKER": address}

    def pay(self, *ids: str) -> None:
        """Put payments into the queue."""
        self.memory.put(
            "payments", *(Message(id=name, type="payment", payload={"amount": 5}) for name in ids)
        )

    def in_hand(self, name: str) -> int | None:
        """The pid of the process that has begun to handle it, or None."""
        file = self.folder / f"pid-{name}"
        return int(file.read_text()) if file.exists() else None

    def go_on(self) -> None:
        """Let every handler finish."""
        (self.folder / "go").touch()

    async def message(self, name: str) -> Record | None:
        """What is kept of a message, or None when nobody knows its id."""
        database = Database(self.url)
        found = await _ask(database, read_message(database.queries, name))
        return found[0] if found else None

    async def state(self, name: str) -> str:
        """The message's state; empty when nobody knows its id."""
        found = await self.message(name)
        return found.state if found is not None else ""

    async def workers(self) -> set[int]:
        """The pids of the worker processes that the database has heard of."""
        database = Database(self.url)
        report = await _ask(database, read_status(database.queries))
        return {worker.pid for worker in report.workers}

    @property
    def queue(self) -> QueueStats:
        """What the broker says."""
        return self.memory.stats()["payments"]


async def _ask(database: Database, op: Op[T]) -> T:
    reader = Reader(database)
    try:
        return await reader.ask(op)
    finally:
        await reader.close()


@asynccontextmanager
async def open_shop(
    folder: Path, url: str, *, handler: str = "async", mode: str = "inline"
) -> AsyncIterator[Shop]:
    """A shop whose broker is served for the length of the block."""
    (folder / "shop.py").write_text(_TOP + HANDLERS[handler])
    await asyncio.to_thread(migrate, url)
    memory = Memory()
    memory.queue("payments")
    async with memory.serve() as address:
        yield Shop(folder, url, mode, memory, address)
