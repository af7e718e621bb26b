"""The bare loops: each client by itself, as its documentation shows it. Receive, the effect, ack."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.contenders.behind import Effect

CHUNK = 100
"""How many a loop asks its broker for at a time, where it asks."""


class AioPika:
    """aio-pika: an iterator over a queue, with prefetch."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name

    async def open(self) -> None:
        """See `Bare.open`."""
        import aio_pika

        self._connection = await aio_pika.connect_robust(self._url)
        channel = await self._connection.channel()
        await channel.set_qos(prefetch_count=CHUNK)
        self._messages = (await channel.get_queue(self._name)).iterator()
        await self._messages.consume()

    async def work(self, count: int, effect: Effect) -> None:
        """See `Bare.work`."""
        for _ in range(count):
            message = await anext(self._messages)
            await effect(message.body)
            await message.ack()

    async def close(self) -> None:
        """See `Bare.close`."""
        await self._messages.close()
        await self._connection.close()


class NatsPy:
    """nats-py: fetches of a durable pull consumer."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name

    async def open(self) -> None:
        """See `Bare.open`."""
        import nats

        self._client = await nats.connect(self._url)
        jetstream = self._client.jetstream()
        self._pull = await jetstream.pull_subscribe(self._name, "bench", stream=self._name)

    async def work(self, count: int, effect: Effect) -> None:
        """See `Bare.work`."""
        while count:
            for message in await self._pull.fetch(min(CHUNK, count)):
                await effect(message.data)
                await message.ack()
                count -= 1

    async def close(self) -> None:
        """See `Bare.close`."""
        await self._client.close()


class RedisPy:
    """redis-py: XREADGROUP, and an XACK per message."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name

    async def open(self) -> None:
        """See `Bare.open`."""
        from redis.asyncio import Redis as Client

        self._client = Client.from_url(self._url)

    async def work(self, count: int, effect: Effect) -> None:
        """See `Bare.work`."""
        while count:
            found: Any = await self._client.xreadgroup(
                "bench", "bare", {self._name: ">"}, count=min(CHUNK, count), block=1000
            )
            for _, entries in found:
                for id_, fields in entries:
                    await effect(fields[b"payload"])
                    await self._client.xack(self._name, "bench", id_)
                    count -= 1

    async def close(self) -> None:
        """See `Bare.close`."""
        await self._client.aclose()


class ConfluentKafka:
    """Positions are stored by hand after each transaction, and committed by the client as time goes by."""

    def __init__(self, words: dict[str, Any], name: str) -> None:
        self._words = words
        self._name = name

    async def open(self) -> None:
        """See `Bare.open`."""
        from confluent_kafka import Consumer

        self._consumer = Consumer(
            {
                **self._words, "group.id": self._name, "auto.offset.reset": "earliest",
                "enable.auto.offset.store": False, "auto.commit.interval.ms": 500,
            }
        )  # fmt: skip
        self._consumer.subscribe([self._name])

    async def work(self, count: int, effect: Effect) -> None:
        """See `Bare.work`."""
        await asyncio.get_running_loop().run_in_executor(None, self._work, count, effect)

    def _work(self, count: int, effect: Effect) -> None:
        while count:
            record = self._consumer.poll(1.0)
            if record is None or record.error():
                continue
            effect(record.value() or b"")
            self._consumer.store_offsets(record)
            count -= 1

    async def close(self) -> None:
        """See `Bare.close`."""
        self._consumer.close()
