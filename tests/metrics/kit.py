"""A shop that is run with `--http`, and scrapes of it."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from oncebox.brokers.memory import Memory
from oncebox.schema import migrate
from tests.cli.kit import Running

SHOP = """\
import os

from oncebox import App, Dead, Message
from oncebox.brokers.remote import RemoteMemory

app = App(os.environ["SHOP_URL"], drain_seconds=60)
payments = RemoteMemory(os.environ["SHOP_BROKER"]).queue("payments")
billing = app.consumer("billing", payments, mode=os.environ["SHOP_MODE"], timeout_seconds=60)
runs = os.open("runs", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
"""

HANDLERS = {
    "postgresql": """\
import psycopg


@billing.handler("payment")
def paid(payment: dict, message: Message, conn: psycopg.Connection) -> None:
    os.write(runs, b".")
    if payment.get("bad"):
        raise Dead("bad")
    conn.execute("INSERT INTO paid VALUES (%s)", (message.id,))
""",
    "sqlite": """\
import sqlite3


@billing.handler("payment")
def paid(payment: dict, message: Message, conn: sqlite3.Connection) -> None:
    os.write(runs, b".")
    if payment.get("bad"):
        raise Dead("bad")
    conn.execute("INSERT INTO paid VALUES (?)", (message.id,))
""",
}

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Shop:
    """A running shop, its broker, and where it serves."""

    def __init__(self, running: Running, memory: Memory, url: str, folder: Path) -> None:
        self.running = running
        self._folder = folder
        self.memory = memory
        self.url = url

    def runs(self) -> int:
        """How often a handler was called, whatever became of it."""
        return (self._folder / "runs").stat().st_size

    async def get(self, path: str) -> httpx.Response:
        """On a connection of its own: a new one may go to any process."""
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
            return await client.get(path)

    async def scrape(self) -> Series:
        answer = await self.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return parse(answer.text)

    async def scrape_until(self, predicate: Callable[[Series], bool], seconds: float = 80) -> Series:
        """Scrape until it shows what is asked for."""
        found: list[Series] = []

        def shown() -> bool:
            return bool(found) and predicate(found[-1])

        async with asyncio.timeout(seconds):
            while not shown():
                found.append(await self.scrape())
        return found[-1]


def parse(text: str) -> Series:
    """Every series, as Prometheus' own client reads it; one that is there twice is an error."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def counters(series: Series) -> Series:
    return {key: value for key, value in series.items() if key[0].endswith(("_total", "_count", "_bucket"))}


def messages(series: Series, kind: str = "payment") -> dict[str, float]:
    """Outcomes of one type, without those that did not occur."""
    return {
        dict(labels)["outcome"]: value
        for (name, labels), value in series.items()
        if name == "oncebox_messages_total" and dict(labels)["type"] == kind and value
    }


@asynccontextmanager
async def open_shop(
    folder: Path, url: str, *options: str, mode: str, processes: int = 1, run_url: str | None = None
) -> AsyncIterator[Shop]:
    """A shop that serves, for the length of the block."""
    engine = url.split(":")[0]
    (folder / "shop.py").write_text(SHOP + HANDLERS[engine])
    await asyncio.to_thread(migrate, url)
    memory = Memory()
    memory.queue("payments")
    async with memory.serve() as address:
        env = {"SHOP_URL": run_url or url, "SHOP_BROKER": address, "SHOP_MODE": mode}
        words = ("shop:app", "--http", "127.0.0.1:0", "--workers", str(processes), *options)
        with Running(*words, cwd=folder, env=env) as running:
            await running.says("serving http://", processes)
            found = re.search(r"serving (http://[\w.:]+)", running.log)
            assert found is not None
            yield Shop(running, memory, found[1], folder)
