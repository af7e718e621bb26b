"""An app on NATS JetStream, and everything going wrong at once."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from oncebox import Dead
from oncebox.brokers.contract import Source
from oncebox.brokers.nats import Nats
from oncebox.message import Message
from tests.brokers.app_suite import AppSuite, Watched
from tests.brokers.chaos import ChaosBroker, chaos, run_chaos
from tests.brokers.nats_bench import DUPLICATE_WINDOW_SECONDS, NatsBench, make_server, nats_of, nats_server
from tests.brokers.suite import Bench, received
from tests.core.kit import Call, Shop, event
from tests.crash.nursery import Nursery
from tests.servers import Postgres
from tests.servers.nats import NatsServer

__all__ = ["nats_server"]

pytestmark = pytest.mark.xdist_group("nats")

STREAM, CONSUMER, SUBJECT = "CHAOS", "counting", "chaos.>"
VISIBILITY_SECONDS = 3.0


class AppBench(NatsBench):
    hasty_seconds = 4.0


class TestNatsApp(AppSuite):
    @pytest.fixture(autouse=True)
    def _on(self, nats_server: NatsServer) -> None:
        self.server = nats_server

    def bench(self) -> Bench:
        return AppBench(self.server)

    async def test_dead_message_goes_to_the_dead_letters_too(self, shop: Shop) -> None:
        async with AppBench(self.server) as bench, AppBench(self.server) as dead:
            source = Nats(self.server.url).stream(
                bench.stream,
                consumer="billing",
                create=True,
                visibility_seconds=bench.visibility_seconds,
                dead_letter=f"{dead.stream}.billing",
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


class NatsChaos(ChaosBroker):
    make_source = "tests.brokers.test_nats_app:chaos_source"

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.arguments: dict[str, Any] = {"url": server.url}
        asyncio.run(self._create())

    async def _create(self) -> None:
        async with nats_of(self.server.url) as js:
            await js.add_stream(name=STREAM, subjects=[SUBJECT], duplicate_window=DUPLICATE_WINDOW_SECONDS)
        # Makes the consumer, so that the queue can be looked at before anybody consumes.
        source = chaos_source(self.server.url)
        await source.open()
        await source.close()

    def publish(self, messages: Sequence[Message]) -> None:
        asyncio.run(self._publish(messages))

    async def _publish(self, messages: Sequence[Message]) -> None:
        sink = Nats(self.server.url).subject("chaos.{type}")
        await sink.open()
        left = list(messages)
        while left:
            outcomes = await sink.publish(left)
            left = [message for message, failed in zip(left, outcomes, strict=True) if failed is not None]
        await sink.close()

    def restart(self) -> None:
        self.server.kill9()
        self.server.start()

    def is_empty(self) -> bool:
        return asyncio.run(self._is_empty())

    async def _is_empty(self) -> bool:
        async with nats_of(self.server.url) as js:
            info = await js.consumer_info(STREAM, CONSUMER)
        return (info.num_pending, info.num_ack_pending) == (0, 0)


def chaos_source(url: str) -> Source:
    return Nats(url).stream(STREAM, consumer=CONSUMER, create=True, visibility_seconds=VISIBILITY_SECONDS)


@chaos
def test_chaos(disposable_postgres: Postgres, nursery: Nursery) -> None:
    with make_server() as server:
        run_chaos(NatsChaos(server), disposable_postgres, nursery)
