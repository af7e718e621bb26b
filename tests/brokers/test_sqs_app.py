"""An app on SQS, as moto plays it, by its real clock."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from oncebox import Retry
from oncebox.brokers.contract import Delivery, Source
from oncebox.brokers.sqs import Sqs
from oncebox.errors import ConfigError
from oncebox.message import Message
from oncebox.runtime import feed
from tests.brokers.app_suite import AppSuite, Watched, until
from tests.brokers.chaos import SIZE, SOAKING, ChaosBroker, Size, chaos, run_chaos
from tests.brokers.sqs_bench import FifoBench, SqsBench, client, moto, new_name, session
from tests.brokers.suite import Bench, ids, received
from tests.core.kit import Call, Shop, effect, event
from tests.crash.nursery import Nursery
from tests.servers import Postgres
from tests.servers.moto import REGION


class TestSqsApp(AppSuite):
    def bench(self) -> Bench:
        return SqsBench()


class Extended(Watched):
    """Counts how often the app asked for more time."""

    extensions = 0

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        await self.source.extend(deliveries, seconds)
        self.extensions += 1


async def test_message_is_not_given_to_another_while_its_handler_works(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "EXTEND_EVERY_SECONDS", 0.05)
    starts: list[str] = []
    async with SqsBench() as bench:
        watched = Extended(bench.make_source())

        @shop.handler(shop.consumer("billing", cast("Source", watched)))
        async def slow(call: Call) -> None:
            starts.append(call.message.id)
            if call.message.id == "slow":
                for _ in range(2):
                    await bench.pass_seconds(bench.visibility_seconds - 10)
                    # The one that is under way may have begun before; the next has not.
                    enough = watched.extensions + 2
                    await until(lambda enough=enough: watched.extensions >= enough)  # type: ignore[misc]
                # Were the first there again, it would come before this one.
                await bench.publish(event("quick"))
                await until(lambda: len(watched.received) > 1)
            await call.db.effect(call.message.id)

        await bench.publish(event("slow"))
        async with shop.app.running():
            await until(lambda: shop.effects() == {"slow": 1, "quick": 1})
    assert starts == ids(watched.received) == ["slow", "quick"]


@pytest.mark.parametrize("suffix", ["", ".fifo"])
async def test_dead_message_is_copied_as_it_came_to_the_dead_letter_queue(shop: Shop, suffix: str) -> None:
    headers = (("x", b"1"), ("x", b"2"), ("blob", b"\xff"))
    async with (FifoBench if suffix else SqsBench)() as bench:
        dead = new_name(f"-dead{suffix}")
        source = bench.sqs.queue(bench.name, wait_seconds=1, dead_letter=dead, create=True)

        shop.handler(shop.consumer("billing", source))(effect)
        await bench.publish(Message(id="bad", type="paid", key="k", payload=b"\x00", headers=headers))
        async with shop.app.running():
            await until(lambda: shop.count("dead") == 1)
            graveyard = bench.sqs.queue(dead, wait_seconds=1)
            await graveyard.open()
            [copy] = await received(graveyard)
            await graveyard.close()
        assert (ids([copy]), copy.body, copy.key) == (["bad"], b"\x00", "k")
        assert tuple(pair for pair in copy.headers if pair[0] in ("x", "blob")) == headers
        assert ("oncebox-reason", b"undecodable") in copy.headers
        assert await left_in(bench.name) == 0


async def test_keys_are_handled_in_order_across_apps_though_one_fails(shop: Shop) -> None:
    seen: list[str] = []
    failed: list[str] = []
    names = [f"{key}{number}" for number in range(6) for key in "abc"]
    async with FifoBench() as bench:
        other = Shop("psycopg-async", shop._url, "inline", drain_seconds=15.0)
        for place in (shop, other):
            source = bench.sqs.queue(bench.name, wait_seconds=1)

            @place.handler(place.consumer("billing", source, order_by="key"))
            async def noted(call: Call) -> None:
                if call.message.id == "b2" and not failed:
                    failed.append("b2")
                    raise Retry("not yet", after=0.5)
                seen.append(call.message.id)
                await call.db.effect(call.message.id)

        try:
            async with shop.app.running(), other.app.running():
                await bench.publish(*(event(name, key=name[0]) for name in names))
                await until(lambda: len(shop.effects()) == len(names))
        finally:
            await other.close()
    for key in "abc":
        assert [name for name in seen if name[0] == key] == [f"{key}{number}" for number in range(6)]
    assert failed


async def test_order_by_key_is_refused_for_a_standard_queue(shop: Shop) -> None:
    source = Sqs(region=REGION).queue("payments")
    shop.handler(shop.consumer("billing", source, order_by="key"))(effect)
    with pytest.raises(ConfigError, match='payments does not; use mode="stored"'):
        async with shop.app.running():
            pass


class SqsChaos(ChaosBroker):
    """A queue that is never restarted with its server, since moto keeps nothing."""

    make_source = "tests.brokers.test_sqs_app:chaos_source"
    durable = False

    def __init__(self) -> None:
        self.name = new_name()
        self.arguments = {"url": moto().url, "name": self.name}

    def publish(self, messages: Sequence[Message]) -> None:
        asyncio.run(self._publish(messages))

    async def _publish(self, messages: Sequence[Message]) -> None:
        sink = Sqs(region=REGION, endpoint_url=moto().url, session=session()).sink(self.name, create=True)
        await sink.open()
        assert await sink.publish(messages) == [None] * len(messages)
        await sink.close()

    def restart(self) -> None:
        raise NotImplementedError

    def is_empty(self) -> bool:
        return asyncio.run(left_in(self.name)) == 0


async def left_in(queue: str) -> int:
    """Everything in a queue, delivered or not."""
    async with client() as bare:
        url = (await bare.get_queue_url(QueueName=queue))["QueueUrl"]
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        reply = await bare.get_queue_attributes(QueueUrl=url, AttributeNames=names)
        return sum(map(int, reply["Attributes"].values()))


def chaos_source(url: str, name: str) -> Source:
    # Short, so that what the dead had in hand is not waited for; still above the runtime's extensions.
    broker = Sqs(region=REGION, endpoint_url=url, session=session())
    return broker.queue(name, create=True, visibility_seconds=6, wait_seconds=1)


@chaos
def test_chaos(disposable_postgres: Postgres, nursery: Nursery) -> None:
    # moto is no broker for a crowd: it walks through the whole queue for every request.
    small = Size(messages=120, kills=2)
    run_chaos(SqsChaos(), disposable_postgres, nursery, size=SIZE if SOAKING else small)
