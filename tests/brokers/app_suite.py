"""What an app does with a broker, whichever it is: one suite, run for each on a real PostgreSQL.

A broker joins by subclassing `AppSuite` with the `Bench` of its `BrokerSuite`; the fixtures are in
`conftest.py`. Here the bench's clock must move by itself, since the app waits by it. That something was
*not* acked is read off the answers the app gave and off what the broker still has.
"""

import asyncio
import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import pytest

from oncebox import Backoff, Retry
from oncebox.brokers.contract import Delivery, Source
from oncebox.codec.columns import unpack_headers
from oncebox.message import Message
from tests.brokers.suite import Bench, ids, received
from tests.core.kit import Call, Shop, effect, event
from tests.servers import Proxy
from tests.waiting import eventually_async

PATIENCE_SECONDS = 30.0
LAST = "the last one"


async def until(predicate: Callable[[], Any]) -> None:
    await eventually_async(predicate, PATIENCE_SECONDS)


class Watched:
    """A source as it is, with a note of everything that passes."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.received: list[Delivery] = []
        self.acked: list[Delivery] = []
        self.nacked: list[Delivery] = []
        self.released: list[Delivery] = []
        self.loses_acks = False
        """Acks get lost on their way."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    async def receive(self, limit: int) -> list[Delivery]:
        deliveries = await self.source.receive(limit)
        self.received += deliveries
        return deliveries

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        self.acked += deliveries
        if not self.loses_acks:
            await self.source.ack(deliveries)

    async def nack(self, delivery: Delivery, delay_seconds: float) -> None:
        self.nacked.append(delivery)
        await self.source.nack(delivery, delay_seconds)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        self.released += deliveries
        await self.source.release(deliveries)


class AppSuite(ABC):
    """The behaviour itself. Subclasses are named `Test…`, which is how they are found."""

    @abstractmethod
    def bench(self) -> Bench: ...

    def watched(self, bench: Bench) -> Watched:
        """A subscription for an app, which opens and closes it."""
        return Watched(bench.make_source())

    def subscribe(self, shop: Shop, watched: Watched, **policy: Any) -> Any:
        """A consumer of it, without handlers."""
        return shop.consumer("billing", cast("Source", watched), **policy)

    async def left(self, bench: Bench) -> set[str | None]:
        """The ids of what the broker still has, once nobody else is subscribed.

        By order: what was published last comes last. A broker without order says it in its own way.
        """
        await bench.publish(Message(id=LAST))
        source = await bench.source()
        found: set[str | None] = set()
        while LAST not in found:
            deliveries = await received(source)
            found |= {delivery.properties.get("message_id") for delivery in deliveries}
            await source.ack(deliveries)
        await bench.heard(source)
        await source.close()
        return found - {LAST}

    async def test_message_whose_ack_was_lost_comes_back_and_takes_effect_once(self, shop: Shop) -> None:
        async with self.bench().hasty() as bench:
            watched = self.watched(bench)
            shop.handler(self.subscribe(shop, watched))(effect)
            watched.loses_acks = True
            async with shop.app.running():
                await bench.publish(event("a"), event("b"))
                await until(lambda: len(watched.acked) >= 2)
                watched.loses_acks = False
                watched.acked.clear()
                await bench.lose(watched.source)
                await until(lambda: {"a", "b"} <= set(ids(watched.acked)))
            assert not await self.left(bench)
        assert shop.effects() == {"a": 1, "b": 1}
        assert all(delivery.redelivered for delivery in watched.received[2:])

    async def test_failed_message_is_tried_again_not_before_its_delay(self, shop: Shop) -> None:
        starts: list[tuple[int, int, float]] = []
        async with self.bench() as bench:
            watched = self.watched(bench)

            @shop.handler(self.subscribe(shop, watched, retry=Backoff(attempts=5)))
            async def third_time(call: Call) -> None:
                starts.append((call.tx.attempt, call.message.deliveries, time.monotonic()))
                await call.db.effect(call.message.id)
                if len(starts) < 3:
                    raise Retry("not yet", after=0.4)

            await bench.publish(event("a", headers={"h": b"1"}, key="k"))
            async with shop.app.running():
                await until(lambda: shop.effects()["a"] == 1)
            assert not await self.left(bench)
            counts = bench.features.counts and bench.features.delays
        assert [attempt for attempt, _, _ in starts] == [1, 2, 3]
        times = [moment for _, _, moment in starts]
        assert min(later - sooner for sooner, later in itertools.pairwise(times)) >= 0.4
        if counts:
            assert [deliveries for _, deliveries, _ in starts] == [1, 2, 3], "the count of the broker is seen"
        assert shop.effects() == {"a": 1}

    async def test_consumers_side_by_side_share_the_messages(self, shop: Shop) -> None:
        messages = [event(f"m{number}") for number in range(60)]
        async with self.bench() as bench:
            mine, theirs = self.watched(bench), self.watched(bench)
            other = Shop("psycopg-async", shop._url, "inline", drain_seconds=15.0)
            for place, watched in ((shop, mine), (other, theirs)):
                place.handler(self.subscribe(place, watched))(effect)
            try:
                async with shop.app.running(), other.app.running():
                    # Twice, as a producer does that was not sure; some brokers notice by themselves.
                    await bench.publish(*messages)
                    await bench.publish(*messages)
                    await until(lambda: len(shop.effects()) == 60)
                assert await self.left(bench) <= {message.id for message in messages}
            finally:
                await other.close()
        assert shop.effects() == {message.id: 1 for message in messages}
        assert not mine.nacked
        assert not theirs.nacked

    async def test_poison_ends_dead_with_its_id_and_headers_and_the_rest_goes_on(self, shop: Shop) -> None:
        headers = (("blob", b"\xff\xfe"), ("trace", b"t-1"))
        async with self.bench() as bench:
            billing = self.subscribe(shop, self.watched(bench), retry=Backoff(attempts=2, base_seconds=0.01))

            @shop.handler(billing, "poison")
            async def fails(call: Call) -> None:
                raise ValueError("always")

            shop.handler(billing, "paid")(effect)
            await bench.publish(
                event("good-1"), event("bad", type="poison", headers=headers), event("good-2")
            )
            async with shop.app.running():
                await until(lambda: shop.count("dead") == 1 and sum(shop.effects().values()) == 2)
            assert not await self.left(bench)
        [(identity, reason, *_)] = shop.dead()
        assert (identity, reason) == ("bad", "exhausted")
        [(kept,)] = shop.rows("SELECT headers FROM oncebox.dead")
        assert tuple(pair for pair in unpack_headers(kept) if pair in headers) == headers
        assert len(shop.attempts("bad")) == 2
        assert shop.effects() == {"good-1": 1, "good-2": 1}

    async def test_leaving_finishes_what_is_in_hand_and_leaves_the_rest_to_the_broker(
        self, shop: Shop
    ) -> None:
        names = {f"m{number}" for number in range(20)}
        gate = shop.gate()
        async with self.bench() as bench:
            watched = self.watched(bench)

            @shop.handler(self.subscribe(shop, watched, concurrency=1))
            async def held(call: Call) -> None:
                await gate.wait()
                await call.db.effect(call.message.id)

            await bench.publish(*map(event, sorted(names)))
            leaving = asyncio.Event()

            async def serve() -> None:
                async with shop.app.running():
                    await gate.reached_by_somebody()
                    leaving.set()

            serving = asyncio.create_task(serve())
            await leaving.wait()
            gate.open()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await serving
            done = shop.effects()
            assert set(done)
            assert set(done.values()) == {1}
            assert {delivery.properties["message_id"] for delivery in watched.acked} == set(done)
            left = await self.left(bench)
        assert left == names - set(done), "what was not handled is delivered again, and nothing else"
        assert not watched.nacked

    async def test_cancellation_in_a_handler_neither_acks_nor_nacks(self, shop: Shop) -> None:
        runs = 0
        async with self.bench() as bench:
            watched = self.watched(bench)

            @shop.handler(self.subscribe(shop, watched))
            async def cancelled_first(call: Call) -> None:
                nonlocal runs
                runs += 1
                await call.db.effect(call.message.id)
                if runs == 1:
                    assert not watched.acked
                    assert not watched.nacked
                    task = asyncio.ensure_future(asyncio.Event().wait())
                    task.cancel()
                    await task

            await bench.publish(event("a"))
            async with shop.app.running():
                await until(lambda: shop.effects()["a"] == 1)
            assert not await self.left(bench)
        assert runs == 2
        assert (len(watched.acked), len(watched.nacked), len(watched.released)) == (1, 0, 1)
        assert shop.attempts("a") == []

    async def test_while_the_database_is_away_nothing_is_answered_and_then_all_is_handled(
        self, shop: Shop, database_way: Proxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "oncebox")
        names = [f"m{number}" for number in range(30)]
        async with self.bench() as bench:
            watched = self.watched(bench)
            shop.handler(self.subscribe(shop, watched))(effect)
            async with shop.app.running():
                await bench.publish(event("before"))
                await until(lambda: len(watched.acked) == 1)
                database_way.cut(refuse=True)
                await bench.publish(*map(event, names))
                await until(lambda: len(watched.received) > 1)
                await until(lambda: "paused, trying again (4)" in caplog.text)
                assert (len(watched.acked), watched.nacked, watched.released) == (1, [], [])
                database_way.pass_through()
                await until(lambda: len(shop.effects()) == len(names) + 1)
            assert not await self.left(bench)
        assert shop.effects() == dict.fromkeys(["before", *names], 1)
        assert shop.count("attempt") == 0, "nothing is charged"

    async def test_message_without_identity_is_kept_with_its_provenance(self, shop: Shop) -> None:
        async with self.bench() as bench:
            shop.handler(self.subscribe(shop, self.watched(bench)))(effect)
            nameless = Delivery(body=b"", headers=(("blob", b"\xff"),))
            await bench.publish(nameless, event("good"))
            async with shop.app.running():
                await until(lambda: shop.count("dead") == 1 and shop.effects() == {"good": 1})
            assert not await self.left(bench)
        [(reason, payload, headers, provenance)] = shop.rows(
            "SELECT reason, payload, headers, provenance FROM oncebox.dead"
        )
        assert (reason, payload) == ("no identity", b"")
        assert ("blob", b"\xff") in unpack_headers(headers)
        assert any(msgspec.json.decode(provenance).values()), "it says where the message lay"
