"""The relay: from commit to the broker's confirmation, and its rate against the loop that everybody writes first.

The broker is a private NATS JetStream server, so that every confirmation is a real one; where its binary is not
installed, the in-process broker stands in, and the result says so.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from benchmarks.options import Options
from benchmarks.pairs import spread
from benchmarks.stage import Stage
from oncebox import App, Message, Outbox
from oncebox.brokers.contract import Sink
from oncebox.core.outgoing import SLOTS, new_id, slot_of
from oncebox.drivers.database import Database
from oncebox.runtime.relay import Bell, Relay, routes

KEYS = 100
PAUSE_SECONDS = 0.02
LOOP_ROWS = {True: 150, False: 400}
RELAY_ROWS = {True: 2_000, False: 10_000}
ROUNDS = {True: 3, False: 7}
SAMPLES = {True: 60, False: 300}


class Timed:
    """A sink that notes when the broker has confirmed each message."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.name = sink.name
        self.confirmed: dict[str, float] = {}

    async def open(self) -> None:
        await self._sink.open()

    async def close(self) -> None:
        await self._sink.close()

    async def publish(self, messages: Sequence[Message]) -> list[BaseException | None]:
        replies = await self._sink.publish(messages)
        now = time.perf_counter()
        for message, reply in zip(messages, replies, strict=True):
            if reply is None:
                self.confirmed.setdefault(message.id, now)
        return replies


@asynccontextmanager
async def _broker() -> AsyncIterator[tuple[str, Timed]]:
    from oncebox.brokers.memory import Memory
    from tests.servers.nats import NatsServer
    from tests.servers.process import Unavailable

    try:
        server = NatsServer()
    except Unavailable:
        yield "in-process broker", Timed(Memory().topic("bench"))
        return
    from oncebox.brokers.nats import Nats

    # As it ships: it syncs by time. With a sync per message the broker's disk would be all that is measured.
    settings = server._folder / "nats.conf"
    settings.write_text(settings.read_text().replace(", sync_interval: always", ""))
    with server:
        yield "NATS JetStream", Timed(Nats(server.url).subject("bench.{type}", stream="BENCH", create=True))


async def latency(stage: Stage, options: Options) -> dict[str, Any]:
    """Milliseconds from the call of commit() to the broker's confirmation, one message at a time, NOTIFY on."""
    _empty(stage)
    outbox, sent = Outbox("bench"), {}
    async with _broker() as (broker, sink), App(stage.url, sink=sink).running(only=("relay",)):
        connection = await psycopg.AsyncConnection.connect(stage.url)
        try:
            for number in range(SAMPLES[options.quick] + 10):
                id_ = await outbox.publish(connection, "measured", {"n": number}, key=number % KEYS)
                sent[id_] = time.perf_counter()
                await connection.commit()
                await asyncio.sleep(PAUSE_SECONDS)
            async with asyncio.timeout(30):
                while len(sink.confirmed) < len(sent):  # noqa: ASYNC110 - bounded, and after the measured part
                    await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await connection.close()
    # The first ones wait for the relay to listen, and for the broker's stream.
    waits = [1e3 * (sink.confirmed[id_] - at) for id_, at in sent.items()][10:]
    return {
        "value": round(statistics.median(waits), 2),
        "spread": spread(waits),
        "p99_ms": round(sorted(waits)[int(0.99 * len(waits))], 2),
        "broker": broker,
        "verified": len(sink.confirmed) == len(sent),
        "effects": {"found": len(sink.confirmed), "expected": len(sent)},
    }


async def rate(stage: Stage, options: Options) -> dict[str, Any]:
    """The relay against publish one, mark one: in turns, on the same rows, to the same broker."""
    loops: list[float] = []
    relays: list[float] = []
    async with _broker() as (broker, sink):
        await sink.open()
        relay = Relay(Database(stage.url), routes(sink), "bench", Bell())
        connection = await psycopg.AsyncConnection.connect(stage.url)
        try:
            _empty(stage)
            _fill(stage, 200)
            await _relayed(relay)
            for _ in range(ROUNDS[options.quick]):
                _fill(stage, LOOP_ROWS[options.quick])
                loops.append(LOOP_ROWS[options.quick] / await _looped(connection, sink))
                _fill(stage, RELAY_ROWS[options.quick])
                relays.append(RELAY_ROWS[options.quick] / await _relayed(relay))
            _fill(stage, LOOP_ROWS[options.quick])
            loops.append(LOOP_ROWS[options.quick] / await _looped(connection, sink))
        finally:
            await connection.close()
            await relay.close()
    around = itertools.pairwise(loops)
    ratios = [ours / ((before + after) / 2) for ours, (before, after) in zip(relays, around, strict=True)]
    expected = 200 + len(loops) * LOOP_ROWS[options.quick] + len(relays) * RELAY_ROWS[options.quick]
    return {
        "value": round(statistics.median(ratios), 2),
        "spread": spread(ratios),
        "broker": broker,
        "contender": _side("relay", relays),
        "base": _side("publish one, mark one", loops),
        "verified": len(sink.confirmed) == expected,
        "effects": {"found": len(sink.confirmed), "expected": expected},
    }


async def _relayed(relay: Relay) -> float:
    started = time.perf_counter()
    while await relay.turn():
        pass
    return time.perf_counter() - started


async def _looped(connection: psycopg.AsyncConnection[Any], sink: Timed) -> float:
    started = time.perf_counter()
    while True:
        cursor = await connection.execute(
            "SELECT seq, id, source, type, key, payload FROM oncebox.outbox WHERE state = 0 ORDER BY seq LIMIT 1 "
            "FOR UPDATE SKIP LOCKED"
        )
        row = await cursor.fetchone()
        if row is None:
            await connection.rollback()
            return time.perf_counter() - started
        seq, id_, source, kind, key, payload = row
        message = Message(id=id_, source=source, type=kind, key=key, payload=bytes(payload))
        assert await sink.publish([message]) == [None]
        await connection.execute("DELETE FROM oncebox.outbox WHERE seq = %s", (seq,))
        await connection.commit()


def _empty(stage: Stage) -> None:
    """As new; the slots are part of the schema, and `reset` takes them too."""
    stage.reset()
    stage.observer.execute(
        "INSERT INTO oncebox.slot (slot) SELECT generate_series(0, %s) ON CONFLICT DO NOTHING", (SLOTS - 1,)
    )


def _fill(stage: Stage, count: int) -> None:
    columns = "slot, id, source, type, key, payload, headers, content_type"
    with stage.observer.cursor().copy(f"COPY oncebox.outbox ({columns}) FROM STDIN") as copy:
        for number in range(count):
            message = Message(id=new_id(), type="measured", key=f"key-{number % KEYS}", payload={"n": number})
            copy.write_row(
                (
                    slot_of(message), message.id, "bench", message.type, message.key, message.payload, b"",
                    message.content_type,
                )
            )  # fmt: skip
    stage.observer.execute("ANALYZE oncebox.outbox")


def _side(name: str, rates: list[float]) -> dict[str, Any]:
    return {
        "name": name, "driver": "psycopg", "concurrency": 1, "per_second": round(statistics.median(rates)),
        "client_cpu_us": None, "server_cpu_us": None,
    }  # fmt: skip
