"""An app on Redis Streams, and everything going wrong at once."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from oncebox import Dead
from oncebox.brokers.contract import Source
from oncebox.brokers.redis import Redis
from oncebox.errors import BrokerUnavailable
from oncebox.message import Message
from tests.brokers.app_suite import AppSuite, Watched
from tests.brokers.chaos import ChaosBroker, chaos, run_chaos
from tests.brokers.redis_bench import RedisBench, make_server, redis_of, redis_server
from tests.brokers.suite import Bench, received
from tests.core.kit import Call, Shop, event
from tests.crash.nursery import Nursery
from tests.servers import Postgres
from tests.servers.redis import RedisServer

__all__ = ["redis_server"]

pytestmark = pytest.mark.xdist_group("redis")

STREAM, GROUP = "chaos", "counting"
VISIBILITY_SECONDS = 3.0


class AppBench(RedisBench):
    hasty_seconds = 4.0


class TestRedisApp(AppSuite):
    @pytest.fixture(autouse=True)
    def _on(self, redis_server: RedisServer) -> None:
        self.server = redis_server

    def bench(self) -> Bench:
        return AppBench(self.server)

    async def test_dead_message_goes_to_the_dead_letters_too(self, shop: Shop) -> None:
        async with AppBench(self.server) as bench, AppBench(self.server) as dead:
            source = Redis(self.server.url).stream(
                bench.stream, group="billing", create=True, dead_letter=dead.stream
            )
            shop.handler(self.subscribe(shop, Watched(source)))(refuse)
            await bench.publish(event("bad", headers={"trace": b"t-1"}))
            async with shop.app.running():
                [copy] = await received(await dead.source())
            assert copy.properties["message_id"] == "bad"
            assert {("trace", b"t-1"), ("oncebox-reason", b"terminal")} <= set(copy.headers)
            assert not await self.left(bench)
        assert [reason for _, reason, *_ in shop.dead()] == ["terminal"]


async def refuse(call: Call) -> None:
    raise Dead("never")


class RedisChaos(ChaosBroker):
    make_source = "tests.brokers.test_redis_app:chaos_source"

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.arguments: dict[str, Any] = {"url": server.url}
        asyncio.run(self._create())

    async def _create(self) -> None:
        source = chaos_source(self.server.url)
        await source.open()
        await source.close()

    def publish(self, messages: Sequence[Message]) -> None:
        asyncio.run(self._publish(messages))

    async def _publish(self, messages: Sequence[Message]) -> None:
        sink = Redis(self.server.url).topic(STREAM)
        await sink.open()
        left = list(messages)
        while left:
            try:
                outcomes = await sink.publish(left)
            except BrokerUnavailable:
                continue
            left = [message for message, failed in zip(left, outcomes, strict=True) if failed is not None]
        await sink.close()

    def restart(self) -> None:
        self.server.kill9()
        self.server.start()

    def is_empty(self) -> bool:
        return asyncio.run(self._is_empty())

    async def _is_empty(self) -> bool:
        async with redis_of(self.server.url) as client:
            [group] = await client.xinfo_groups(STREAM)
            return (group["pending"], group["lag"], await client.xlen(STREAM)) == (0, 0, 0)


def chaos_source(url: str) -> Source:
    return Redis(url).stream(
        STREAM, group=GROUP, create=True, delete=True, visibility_seconds=VISIBILITY_SECONDS
    )


@chaos
def test_chaos(disposable_postgres: Postgres, nursery: Nursery) -> None:
    with make_server() as server:
        run_chaos(RedisChaos(server), disposable_postgres, nursery)
