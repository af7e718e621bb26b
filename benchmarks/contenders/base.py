"""What every contender has: a load of its own, and a run over a slice of it."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.load import Load
from benchmarks.stage import Place
from oncebox import Message

UPDATE = "UPDATE account SET balance = balance + {0} WHERE id = {1}"
UPDATE_PSYCOPG = UPDATE.format("%s", "%s")
UPDATE_ASYNCPG = UPDATE.format("$1", "$2")
UPDATE_SQLITE = UPDATE.format("?", "?")

DRIVER_NAMES = {
    "psycopg": "psycopg",
    "psycopg-async": "psycopg async + uvloop",
    "asyncpg": "asyncpg + uvloop",
    "sqlite": "sqlite3",
}


class ContenderEnded(Exception):
    """A contender in a process of its own is gone; the run goes on without it."""


class Contender:
    """A way to handle messages. `run` answers how long it took from the first to the last effect."""

    label = ""
    in_process = True
    """Its CPU time is this process's."""
    stays_connected = True
    """The server's CPU time can be told: what ends with a slice takes its own with it."""
    count_min = 20
    count_max = 60_000

    def __init__(self, driver: str, concurrency: int = 1, load: Load | None = None) -> None:
        self.driver = DRIVER_NAMES.get(driver, driver)
        self.concurrency = concurrency
        self.load = load or Load()
        self.count_max = max(1, min(self.count_max, 80_000_000 // self.load.payload_bytes))

    async def open(self, stage: Place) -> None:
        """Connect and prepare."""
        raise NotImplementedError

    async def prime(self) -> None:
        """Whatever has to have happened before the first slice."""

    async def run(self, messages: Sequence[Message]) -> float:
        """Handle all of them; the seconds it took."""
        raise NotImplementedError

    async def close(self) -> None:
        """Let go of everything."""

    def effects(self) -> int:
        """Effects there must be by now."""
        return self.load.effects

    def balance(self, stage: Place) -> int:
        """Effects there are: the sum over the accounts that both sides of a comparison share."""
        return stage.balance()
