"""Everything goes wrong at once, and each message takes effect once all the same: for any broker.

A producer sends a tenth of its messages twice, consumer processes are killed, the broker and PostgreSQL
are killed and restarted under load. A broker joins with a `ChaosBroker` of its own and one test that calls
`run_chaos`. Small by default; `ONCEBOX_SOAK=1` runs it at full size.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import random
import signal
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
import psycopg
import pytest

from oncebox import App, Backoff, Message
from oncebox.brokers.contract import Source
from oncebox.drivers.database import Database
from oncebox.runtime.schema import migrate
from tests.crash.nursery import Child, Nursery
from tests.servers import Postgres
from tests.waiting import eventually

SOAKING = os.environ.get("ONCEBOX_SOAK") == "1"
PATIENCE_SECONDS = 30.0
LISTENING = "ends in order from here on"


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How much is sent, and how much goes wrong meanwhile."""

    messages: int = 300
    kills: int = 3
    broker_restarts: int = 1
    database_restarts: int = 1
    workers: int = 2
    seconds: float = 60.0
    """The longest that what is sent may take once nothing goes wrong any more."""


SMALL = Size()
FULL = Size(messages=5_000, kills=20, broker_restarts=3, workers=3, seconds=300.0)
SIZE = FULL if SOAKING else SMALL
chaos = pytest.mark.timeout(900 if SOAKING else 240)
"""For the test that calls `run_chaos`: several servers and processes, each started more than once."""


class ChaosBroker(ABC):
    """A broker as the test drives it: one queue, empty at first. Called from one thread, blocking."""

    make_source: str
    """`module:function`, which makes a consumer's source in its process from `arguments`."""
    arguments: dict[str, Any]
    """What it is called with, as JSON can say it."""
    durable = True
    """What it has confirmed survives its own kill and restart; else it is not restarted."""

    @abstractmethod
    def publish(self, messages: Sequence[Message]) -> None:
        """Return when the broker has confirmed all of them."""

    @abstractmethod
    def restart(self) -> None:
        """Kill the broker as a power cut would, and start it again with its data."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Nothing is left: nothing ready, delayed or delivered and unanswered."""


def run_chaos(
    broker: ChaosBroker, postgres: Postgres, nursery: Nursery, *, size: Size = SIZE, **policy: Any
) -> None:
    """Run it, and fail unless every message took effect exactly once and the queue is empty."""
    world = _World(broker, postgres, nursery, policy)
    seed = int(os.environ.get("ONCEBOX_SEED", "0")) or random.randrange(1, 1_000_000)
    print(f"ONCEBOX_SEED={seed}")
    chance = random.Random(seed)
    restarts = size.broker_restarts if broker.durable else 0
    mishaps = ["kill"] * size.kills + ["broker"] * restarts + ["database"] * size.database_restarts
    chance.shuffle(mishaps)
    ids = [f"m{number}" for number in range(size.messages)]
    twice = chance.sample(ids, size.messages // 10)
    sending = sorted([*ids, *twice], key=lambda _: chance.random())
    try:
        for _ in range(size.workers):
            world.start()
        for part, mishap in enumerate(mishaps):
            share = slice(part * len(sending) // len(mishaps), (part + 1) * len(sending) // len(mishaps))
            handled = world.effects()
            broker.publish([Message(id=name, type="t", payload={"id": name}) for name in sending[share]])
            # Into the middle of the work: some of this share is handled, and some is not.
            few = chance.randrange(1, max(2, (share.stop - share.start) // 2))
            world.wait_for(min(handled + few, len(set(sending[: share.stop]))))
            world.suffer(mishap, chance)
        world.finish(ids, size.seconds)
    except BaseException:
        print(world.story())
        raise
    finally:
        world.close()


ENDINGS_MAX = 5
"""AMQP tells how many wait in a queue, and not how many are out: redeliveries that stand in a consumer's line go back
when it ends, and the next consumer has to see to them."""


class _World:
    """The database, the consumer processes, and what is to be seen of them."""

    def __init__(
        self, broker: ChaosBroker, postgres: Postgres, nursery: Nursery, policy: dict[str, Any]
    ) -> None:
        self.broker = broker
        self.postgres = postgres
        self.nursery = nursery
        self.policy = policy
        self.url = postgres.create_database()
        self.workers: list[Child] = []
        migrate(Database(self.url))
        # Append-only: nothing here keeps a second effect away.
        self._rows("CREATE TABLE effects (id text NOT NULL)")

    def start(self) -> None:
        """One more consumer process; it may find the broker or the database away."""
        self.workers.append(
            self.nursery.fork(
                "tests.brokers.chaos:consume",
                url=self.url,
                make_source=self.broker.make_source,
                arguments=self.broker.arguments,
                policy=self.policy,
            )
        )

    def suffer(self, mishap: str, chance: random.Random) -> None:
        """Let one thing go wrong."""
        if mishap == "broker":
            self.broker.restart()
        elif mishap == "database":
            self.postgres.kill9()
            self.postgres.start()
        else:
            victim = chance.choice([worker for worker in self.workers if worker.status is None])
            victim.kill()
            victim.wait()
            self.start()

    def wait_for(self, effects: int) -> None:
        """Until there are so many."""
        eventually(lambda: self.effects() >= effects, PATIENCE_SECONDS)

    def effects(self) -> int:
        """How many there are now."""
        return int(self._rows("SELECT count(*) FROM effects")[0][0])

    def finish(self, ids: Sequence[str], seconds: float) -> None:
        """Wait until all is handled, end the consumers in order, and count."""
        eventually(lambda: self._distinct() >= len(ids), seconds)
        for _ in range(ENDINGS_MAX):
            eventually(self.broker.is_empty, seconds)
            self._end_workers()
            if self.broker.is_empty():
                break
            self.start()
        effects = Counter(name for (name,) in self._rows("SELECT id FROM effects"))
        assert not [name for name in ids if name not in effects], "lost"
        assert not {name: count for name, count in effects.items() if count != 1}, "doubled"
        assert effects.total() == len(ids)
        assert self._rows("SELECT message_id, reason, error FROM oncebox.dead") == []
        assert self._rows("SELECT count(*) FROM oncebox.ledger") == [(len(ids),)]
        assert self._rows("SELECT count(*) FROM oncebox.queue") == [(0,)]
        assert self.broker.is_empty()

    def _end_workers(self) -> None:
        for worker in self.workers:
            if worker.status is None:
                eventually(partial(_is_listening, worker), PATIENCE_SECONDS)
                worker.kill(signal.SIGTERM)
                assert worker.wait(PATIENCE_SECONDS) == 0, worker.output[-3000:]

    def _distinct(self) -> int:
        return int(self._rows("SELECT count(DISTINCT id) FROM effects")[0][0])

    def _rows(self, text: str) -> list[tuple[Any, ...]]:
        with closing(psycopg.connect(self.url, autocommit=True)) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    def story(self) -> str:
        """What the consumers said, for whoever has to find out why."""
        said = [f"effects: {self._rows('SELECT count(*), count(DISTINCT id) FROM effects')}"]
        for worker in self.workers:
            said += [f"-- consumer {worker.pid}, status {worker.status}:", worker.output[-2500:]]
        return "\n".join(said)

    def close(self) -> None:
        for worker in self.workers:
            if worker.status is None:
                worker.kill()
                worker.wait()


def _is_listening(worker: Child) -> bool:
    return LISTENING in worker.output


def consume(url: str, make_source: str, arguments: dict[str, Any], policy: dict[str, Any]) -> None:
    """In a consumer's process: an app as in production, until SIGTERM."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    module, _, name = make_source.partition(":")
    asyncio.run(_consume(url, getattr(importlib.import_module(module), name)(**arguments), policy))


async def _consume(url: str, source: Source, policy: dict[str, Any]) -> None:
    app = App(url, heartbeat_seconds=0.5, lapse_seconds=5.0, drain_seconds=15.0)
    # A message may be in hand at many of these deaths without being their cause.
    words = {"retry": Backoff(base_seconds=0.01), "crash_limit": 1_000, "concurrency": 2, **policy}
    consumer = app.consumer("chaos", source, **words)

    @consumer.handler("t")
    async def count(payload: dict[str, str], conn: psycopg.AsyncConnection) -> None:
        await conn.execute("INSERT INTO effects (id) VALUES (%s)", (payload["id"],))

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    logging.info(LISTENING)
    while not stop.is_set():
        try:
            async with app.running():
                await stop.wait()
        except Exception as error:  # born while the broker or the database was away: as a supervisor would
            if stop.is_set():
                raise
            logging.warning("could not start: %s", error)
            await asyncio.sleep(0.2)
