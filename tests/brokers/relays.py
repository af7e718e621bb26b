"""Relays on one outbox while they and the broker are killed: for any broker's sink.

Two relay processes publish what two writers commit; each is killed -9 and started again, and the broker is
restarted. An oncebox consumer takes what arrives: every message once, whatever was sent twice, and the
first deliveries of each key in the order in which they were committed. `ONCEBOX_SOAK=1` runs it at full size.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import os
import random
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec
import psycopg
import pytest

from oncebox import App, Backoff, Outbox
from oncebox.brokers.contract import Delivery, Sink, Source
from oncebox.drivers.database import Database
from oncebox.runtime import running
from oncebox.runtime.relay import Relay
from oncebox.runtime.schema import migrate
from tests.brokers.chaos import SOAKING
from tests.crash.nursery import Child, Nursery
from tests.servers import Postgres
from tests.waiting import eventually_async

LEASE_SECONDS = 2.0
WRITERS = 2
relaying = pytest.mark.timeout(1800 if SOAKING else 240)


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How much is published, and how much goes wrong meanwhile."""

    messages: int = 10_000 if SOAKING else 240
    keys: int = 100 if SOAKING else 12
    kills: int = 20 if SOAKING else 2
    restarts: int = 3 if SOAKING else 1


class RelayBroker(msgspec.Struct, frozen=True):
    """A broker as the test drives it."""

    source: Source
    make_sink: str
    """`module:function`, which makes a relay's sink in its process from `arguments`."""
    arguments: dict[str, Any]
    restart: Callable[[], None]


class Recorded:
    """A source that remembers what arrived, in order."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.arrived: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    async def receive(self, limit: int) -> list[Delivery]:
        deliveries = await self._source.receive(limit)
        for delivery in deliveries:
            said = msgspec.json.decode(delivery.body)
            self.arrived.append((said["key"], said["n"]))
        return deliveries


async def run_relays(broker: RelayBroker, postgres: Postgres, nursery: Nursery) -> Recorded:
    """Run it, and fail unless everything arrived, in order per key, and took effect once."""
    size = Size()
    seed = int(os.environ.get("ONCEBOX_SEED", "0")) or random.randrange(1, 1_000_000)
    print(f"ONCEBOX_SEED={seed}")
    chance = random.Random(seed)
    outbox, inbox = postgres.create_database(), postgres.create_database()
    migrate(Database(outbox))
    migrate(Database(inbox))
    _rows(inbox, "CREATE TABLE effects (id text NOT NULL)")
    recorded = Recorded(broker.source)
    app = App(inbox, heartbeat_seconds=0.5, drain_seconds=15.0)
    # A lost connection redelivers to a process that lives: no message is to be suspected for it.
    counter = app.consumer("counter", recorded, retry=Backoff(base_seconds=0.01), crash_limit=1_000)

    @counter.handler("counted")
    async def count(payload: dict[str, Any], conn: psycopg.AsyncConnection) -> None:
        await conn.execute("INSERT INTO effects (id) VALUES (%s)", (f"{payload['key']}-{payload['n']}",))

    relays = [_start(nursery, broker, outbox) for _ in range(2)]
    try:
        async with app.running():
            writers = [(number, random.Random(seed + number)) for number in range(WRITERS)]
            writing = asyncio.gather(
                *(asyncio.to_thread(_write, outbox, number, size, luck) for number, luck in writers)
            )
            mishaps = ["kill"] * size.kills + ["broker"] * size.restarts
            chance.shuffle(mishaps)
            for part, mishap in enumerate(mishaps, 1):
                wanted = size.messages * part // (len(mishaps) + 2)
                await eventually_async(lambda: _count(inbox) >= wanted, 120)  # noqa: B023
                if mishap == "broker":
                    await asyncio.to_thread(broker.restart)
                else:
                    victim = chance.randrange(len(relays))
                    relays[victim].kill()
                    relays[victim].wait()
                    relays[victim] = _start(nursery, broker, outbox)
            await writing
            await eventually_async(lambda: _count(inbox) >= size.messages, 300)
            await eventually_async(lambda: not _rows(outbox, "SELECT 1 FROM oncebox.outbox LIMIT 1"), 60)
    except BaseException:
        print(*(relay.output[-3000:] for relay in relays), sep="\n--\n")
        print(_rows(outbox, "SELECT id, state, attempts, error FROM oncebox.outbox LIMIT 10"))
        raise
    finally:
        for relay in relays:
            relay.kill(signal.SIGTERM)
            relay.wait()
    _judge(size, outbox, inbox, recorded)
    return recorded


def _judge(size: Size, outbox: str, inbox: str, recorded: Recorded) -> None:
    effects = [row[0] for row in _rows(inbox, "SELECT id FROM effects")]
    wanted = {f"key-{n % size.keys}-{n // size.keys}" for n in range(size.messages)}
    assert set(effects) == wanted, "lost"
    assert len(effects) == size.messages, "doubled: a resend came with another id"
    assert _rows(inbox, "SELECT count(*) FROM oncebox.dead") == [(0,)]
    first = list(dict.fromkeys(recorded.arrived))
    for key in {key for key, _ in first}:
        numbers = [n for each, n in first if each == key]
        assert numbers == sorted(numbers), f"{key} is out of order"


def _write(url: str, writer: int, size: Size, chance: random.Random) -> None:
    """Publish this writer's share, a few to a transaction; some transactions are rolled back first."""
    outbox = Outbox("shop")
    mine = [n for n in range(size.messages) if n % size.keys % WRITERS == writer]
    with closing(psycopg.connect(url)) as connection:
        while mine:
            some = mine[: chance.randrange(1, 12)]
            del mine[: len(some)]
            for again in (True, False) if chance.random() < 0.1 else (False,):
                for n in some:
                    key = f"key-{n % size.keys}"
                    said = {"key": key, "n": n // size.keys}
                    outbox.publish(connection, "counted", said, key=key, ordered=n % 3 == 0)
                connection.rollback() if again else connection.commit()


def _start(nursery: Nursery, broker: RelayBroker, url: str) -> Child:
    return nursery.fork(
        "tests.brokers.relays:relay", url=url, make_sink=broker.make_sink, arguments=broker.arguments
    )


def relay(url: str, make_sink: str, arguments: dict[str, Any]) -> None:
    """In a relay's process: until SIGTERM."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    # A killed relay's share waits for its lease: not for ten seconds in a test.
    running.Relay = functools.partial(Relay, lease_seconds=LEASE_SECONDS)  # type: ignore[assignment,attr-defined]
    module, _, name = make_sink.partition(":")
    make: Callable[..., Sink] = getattr(importlib.import_module(module), name)
    asyncio.run(_relay(url, make, arguments))


async def _relay(url: str, make: Callable[..., Sink], arguments: dict[str, Any]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    while not stop.is_set():
        try:
            async with App(url, sink=make(**arguments)).running(only=("relay",)):
                await stop.wait()
        except Exception as error:  # born while the broker was away: as a supervisor would
            logging.warning("could not start: %s", error)
            await asyncio.sleep(0.2)


def _count(url: str) -> int:
    return int(_rows(url, "SELECT count(DISTINCT id) FROM effects")[0][0])


def _rows(url: str, text: str) -> list[tuple[Any, ...]]:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []
