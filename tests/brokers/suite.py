"""What every broker does for oncebox, whichever it is: one suite, run for each.

A broker joins by subclassing `BrokerSuite` with a `bench` of its own, and by saying in `Features` what
it can't do. Nothing here sleeps: that a message is *not* there is shown by another one coming first,
and time passes only when the bench says so. Where time is real, it passes by itself, too: a machine that
stands still breaks no promise, so what must not come early is judged by when it came.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pytest

from oncebox.brokers.contract import BrokerUnavailable, Delivery, Source
from oncebox.message import Message

PATIENCE_SECONDS = 30
VISIBILITY_SECONDS = 30.0


@dataclass(frozen=True)
class Features:
    """What a broker can do. What is False here is skipped, and belongs in its documentation."""

    visibility: bool = True
    """Delivers again what is not answered in time."""
    delays: bool = True
    """Keeps a nacked message away for its delay."""
    counts: bool = True
    """Tells how often it has delivered a message."""
    releases_uncounted: bool = True
    keys: bool = True
    """Carries an ordering key."""
    duplicates: bool = True
    """The bench can make it deliver one message several times."""
    shares: bool = True
    """Any live consumer can get what another one gives back; else each has a part that is its own."""
    header_order: bool = True
    """Keeps headers in their order; else only those of one name."""
    body_bytes: int = 10 * 1024 * 1024


class Bench(ABC):
    """One broker with one empty queue, for one test."""

    features = Features()
    visibility_seconds = VISIBILITY_SECONDS
    hasty_seconds = VISIBILITY_SECONDS
    """The visibility for tests that wait for its end: short where time is real."""
    delay_seconds = 10.0
    """What the suite nacks with. Where time is real, it is short."""
    slack_seconds = 1.0
    """How far the suite stays from the end of a visibility or a delay, on both sides."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stack.aclose()

    def hasty(self) -> Self:
        """For a test that waits for the end of a visibility, before the bench is entered."""
        self.visibility_seconds = self.hasty_seconds
        return self

    def now(self) -> float:
        """The seconds that visibility and delays go by."""
        return time.monotonic()

    def lapsed(self, since: float) -> bool:
        """Whether what came after `since` may be another's by now."""
        return self.features.visibility and self.now() - since >= self.visibility_seconds

    @abstractmethod
    def make_source(self) -> Source:
        """Another subscription to the queue, not open."""

    @abstractmethod
    async def publish(self, *messages: Message | Delivery, duplicates: int = 0) -> None:
        """Put messages into the queue, and return when they are in."""

    @abstractmethod
    async def pass_seconds(self, seconds: float) -> None:
        """Let time pass, by the broker's clock."""

    @abstractmethod
    async def heard(self, source: Source) -> None:
        """Return when the broker has heard every answer given on `source`."""

    @abstractmethod
    async def lose(self, source: Source) -> None:
        """Break the connection of `source`, and return when the broker has noticed."""

    async def source(self) -> Source:
        """An open subscription, closed at the end of the test."""
        source = self.make_source()
        await source.open()
        self.stack.push_async_callback(source.close)
        return source


async def received(source: Source, limit: int = 10) -> list[Delivery]:
    """`receive`, with a bound that fails the test instead of hanging it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await source.receive(limit)


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.properties["message_id"] for delivery in deliveries]


async def come(bench: Bench, source: Source, last: str) -> dict[str, tuple[Delivery, float]]:
    """Receive until `last` is there: of each message the first delivery, and when it was here at the latest."""
    came: dict[str, tuple[Delivery, float]] = {}
    while last not in came:
        for delivery in await received(source):
            came.setdefault(delivery.properties["message_id"], (delivery, bench.now()))
    return came


class BrokerSuite(ABC):
    """The behaviour itself. Subclasses are named `Test…`, which is how they are found."""

    @abstractmethod
    def bench(self) -> Bench: ...

    def needs(self, feature: str) -> None:
        if not getattr(self.bench().features, feature):
            pytest.skip(f"this broker's features say {feature}=False")

    async def test_message_that_is_acked_is_gone(self) -> None:
        async with self.bench().hasty() as bench:
            source = await bench.source()
            await bench.publish(Message(id="a"))
            since = bench.now()
            deliveries = await received(source)
            assert set(ids(deliveries)) == {"a"}
            await source.ack(deliveries)
            await bench.heard(source)
            late = bench.lapsed(since)
            await source.close()
            await bench.pass_seconds(bench.visibility_seconds + bench.slack_seconds)
            await bench.publish(Message(id="b"))
            assert late or ids(await received(await bench.source())) == ["b"]

    async def test_first_delivery_counts_one_and_is_no_redelivery(self) -> None:
        async with self.bench() as bench:
            source = await bench.source()
            await bench.publish(Message(id="a"))
            [delivery] = await received(source)
            assert (delivery.deliveries, delivery.redelivered) == (1, False)
            assert source.counts_deliveries == bench.features.counts

    async def test_unanswered_message_comes_back_after_its_visibility(self) -> None:
        self.needs("visibility")
        async with self.bench().hasty() as bench:
            source, other = await bench.source(), await bench.source()
            await bench.publish(Message(id="a"))
            since = bench.now()
            await received(source)
            await bench.pass_seconds(bench.visibility_seconds - bench.slack_seconds)
            await bench.publish(Message(id="b"))
            came = await come(bench, other, "b")
            await other.ack([came["b"][0]])
            await bench.pass_seconds(2 * bench.slack_seconds)
            again, moment = came.get("a") or (await come(bench, other, "a"))["a"]
            assert moment - since >= bench.visibility_seconds, "not before its time"
            assert again.redelivered

    async def test_waiting_receive_is_woken_by_what_comes_back(self) -> None:
        self.needs("visibility")
        async with self.bench().hasty() as bench:
            source, other = await bench.source(), await bench.source()
            await bench.publish(Message(id="a"))
            await received(source)
            waiting = asyncio.create_task(received(other))
            await bench.heard(other)
            await bench.pass_seconds(bench.visibility_seconds + bench.slack_seconds)
            assert set(ids(await waiting)) == {"a"}

    async def test_count_grows_with_every_delivery(self) -> None:
        self.needs("counts")
        async with self.bench() as bench:
            source = await bench.source()
            await bench.publish(Message(id="a"))
            for count in (1, 2, 3):
                [delivery] = await received(source)
                assert (delivery.deliveries, delivery.redelivered) == (count, count > 1)
                await source.nack(delivery, 0)

    async def test_nacked_message_does_not_come_before_its_delay(self) -> None:
        self.needs("delays")
        async with self.bench() as bench:
            source = await bench.source()
            await bench.publish(Message(id="a"))
            [delivery] = await received(source)
            since = bench.now()
            await source.nack(delivery, bench.delay_seconds)
            await bench.heard(source)
            await bench.pass_seconds(bench.delay_seconds - bench.slack_seconds)
            await bench.publish(Message(id="b"))
            came = await come(bench, source, "b")
            await source.ack([came["b"][0]])
            await bench.pass_seconds(2 * bench.slack_seconds)
            _, moment = came.get("a") or (await come(bench, source, "a"))["a"]
            assert moment - since >= bench.delay_seconds, "not before its time"

    async def test_released_message_is_there_at_once(self) -> None:
        async with self.bench() as bench:
            source = await bench.source()
            other = await bench.source() if bench.features.shares else source
            await bench.publish(Message(id="a"), Message(id="b"))
            await source.release(await received(source))
            both: list[Delivery] = []
            while len(both) < 2:
                both += await received(other)
            assert sorted(ids(both)) == ["a", "b"]
            if bench.features.releases_uncounted:
                assert [delivery.deliveries for delivery in both] == [1, 1]

    async def test_extended_message_stays_away(self) -> None:
        self.needs("visibility")
        async with self.bench().hasty() as bench:
            source, other = await bench.source(), await bench.source()
            await bench.publish(Message(id="a"))
            since, late = bench.now(), False
            deliveries = await received(source)
            for _ in range(3):
                await bench.pass_seconds(bench.visibility_seconds - bench.slack_seconds)
                asked = bench.now()
                await source.extend(deliveries, bench.visibility_seconds)
                await bench.heard(source)
                late, since = late or bench.lapsed(since), asked
            await bench.publish(Message(id="b"))
            came = await come(bench, other, "b")
            late = late or bench.lapsed(since)
            assert late or "a" not in came
            await other.ack([came["b"][0]])
            await source.ack(deliveries)
            await bench.heard(source)
            late = late or bench.lapsed(since)
            await bench.pass_seconds(bench.visibility_seconds - bench.slack_seconds)
            await bench.publish(Message(id="c"))
            assert late or "a" not in await come(bench, other, "c")

    async def test_late_answer_does_not_touch_the_next_delivery(self) -> None:
        self.needs("visibility")
        async with self.bench().hasty() as bench:
            slow, other = await bench.source(), await bench.source()
            await bench.publish(Message(id="a"))
            late = await received(slow)
            await bench.pass_seconds(bench.visibility_seconds + bench.slack_seconds)
            current, _ = (await come(bench, other, "a"))["a"]
            await slow.ack(late)
            await slow.nack(late[0], 100)
            await slow.release(late)
            await slow.extend(late, 1000)
            await bench.heard(slow)
            await other.nack(current, 0)
            assert set(ids(await received(other))) == {"a"}

    async def test_receive_returns_what_is_there_and_does_not_wait_for_more(self) -> None:
        async with self.bench() as bench:
            source = await bench.source()
            await bench.publish(Message(id="a"))
            assert len(await received(source, limit=100)) == 1

    async def test_receive_keeps_to_its_limit(self) -> None:
        async with self.bench() as bench:
            source = await bench.source()
            await bench.publish(*(Message(id=str(number)) for number in range(5)))
            assert len(await received(source, limit=2)) <= 2

    async def test_messages_come_in_the_order_they_were_published(self) -> None:
        async with self.bench() as bench:
            source = await bench.source()
            await bench.publish(*(Message(id=str(number)) for number in range(20)))
            seen: list[str] = []
            while len(seen) < 20:
                seen += ids(await received(source, limit=3))
            assert seen == [str(number) for number in range(20)]

    async def test_concurrent_consumers_never_share_a_live_delivery(self) -> None:
        async with self.bench() as bench:
            count = 200
            sources = [await bench.source() for _ in range(4)]
            start = asyncio.Barrier(len(sources) + 1)
            seen: list[str] = []
            complete = asyncio.Event()

            async def consume(source: Source, limit: int) -> None:
                await start.wait()
                while True:
                    deliveries = await source.receive(limit)
                    seen.extend(ids(deliveries))
                    if len(seen) >= count:
                        complete.set()
                    # Let the others in while these are live.
                    await asyncio.sleep(0)
                    await source.ack(deliveries)

            consumers = [asyncio.create_task(consume(source, 1 + n)) for n, source in enumerate(sources)]
            await start.wait()
            for number in range(0, count, 20):
                await bench.publish(*(Message(id=str(number + n)) for n in range(20)))
            async with asyncio.timeout(PATIENCE_SECONDS):
                await complete.wait()
            for consumer in consumers:
                consumer.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)
            assert sorted(seen, key=int) == [str(number) for number in range(count)]

    async def test_duplicates_are_deliveries_of_their_own_with_the_same_id(self) -> None:
        self.needs("duplicates")
        async with self.bench() as bench:
            source = await bench.source()
            await bench.publish(Message(id="a", payload=b"1"), duplicates=2)
            deliveries: list[Delivery] = []
            while len(deliveries) < 3:
                deliveries += await received(source)
            assert ids(deliveries) == ["a", "a", "a"]
            assert [delivery.body for delivery in deliveries] == [b"1"] * 3
            await source.ack(deliveries[:1])
            await source.nack(deliveries[1], 0)
            assert ids(await received(source)) == ["a"]

    async def test_cancelled_receive_loses_nothing_and_holds_nothing_back(self) -> None:
        async with self.bench() as bench:
            source = await bench.source()
            other = await bench.source() if bench.features.shares else source
            for turns in range(40):
                receiving = asyncio.create_task(source.receive(1))
                for _ in range(turns % 8):
                    await asyncio.sleep(0)
                await bench.publish(Message(id=str(turns)))
                for _ in range(turns // 2):
                    await asyncio.sleep(0)
                receiving.cancel()
                [result] = await asyncio.gather(receiving, return_exceptions=True)
                if isinstance(result, BaseException):
                    assert isinstance(result, asyncio.CancelledError)
                    result = await received(other, limit=1)
                    await other.ack(result)
                else:
                    await source.ack(result)
                assert ids(result) == [str(turns)]
                if bench.features.releases_uncounted:
                    assert [delivery.deliveries for delivery in result] == [1]

    async def test_cancelled_receives_leave_nothing_behind(self) -> None:
        async with self.bench() as bench:
            source = await bench.source()
            for _ in range(100):
                receiving = asyncio.create_task(source.receive(1))
                await asyncio.sleep(0)
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)
            waiting = asyncio.create_task(received(source))
            await bench.heard(source)
            await bench.publish(Message(id="a"))
            [delivery] = await waiting
            assert (delivery.deliveries, delivery.redelivered) == (1, False)

    async def test_headers_keep_their_order_repeats_and_bytes(self) -> None:
        headers = (("x", b"1"), ("blob", b"\xff\x00\xfe"), ("x", b"2"), ("empty", b""))
        async with self.bench() as bench:
            source = await bench.source()
            await bench.publish(Message(id="a", headers=headers))
            [delivery] = await received(source)
            mine = {name for name, _ in headers}
            kept = [pair for pair in delivery.headers if pair[0] in mine]
            if bench.features.header_order:
                assert kept == list(headers)
            else:
                assert sorted(kept, key=lambda pair: pair[0]) == sorted(headers, key=lambda pair: pair[0])

    async def test_id_type_source_and_content_type_are_resolved_from_the_delivery(self) -> None:
        message = Message(
            id="é 1", type="paid", source="shop", payload=b"<a/>", key="k", content_type="text/xml"
        )
        async with self.bench() as bench:
            source = await bench.source()
            await bench.publish(message)
            [delivery] = await received(source)
            who = source.identity.resolve(delivery)
            assert (who.id, who.type, who.source) == ("é 1", "paid", "shop")
            assert (who.content_type, who.payload) == ("text/xml", b"<a/>")

    async def test_key_is_carried(self) -> None:
        self.needs("keys")
        async with self.bench() as bench:
            source = await bench.source()
            await bench.publish(Message(id="a", key="account-7"), Message(id="b"))
            deliveries: list[Delivery] = []
            while len(deliveries) < 2:
                deliveries += await received(source)
            assert {delivery.properties["message_id"]: delivery.key for delivery in deliveries} == {
                "a": "account-7",
                "b": None,
            }

    @pytest.mark.parametrize("size", ["nothing", "one byte", "the most"])
    async def test_body_arrives_byte_for_byte(self, size: str) -> None:
        async with self.bench() as bench:
            count = {"nothing": 0, "one byte": 1, "the most": bench.features.body_bytes}[size]
            body = (bytes(range(256)) * (count // 256 + 1))[:count]
            source = await bench.source()
            await bench.publish(Message(id="a", payload=body))
            [delivery] = await received(source)
            assert delivery.body == body
            await source.ack([delivery])

    async def test_closing_gives_back_what_was_not_answered(self) -> None:
        async with self.bench() as bench:
            source, other = await bench.source(), await bench.source()
            await bench.publish(Message(id="a"), Message(id="b"))
            deliveries: list[Delivery] = []
            while len(deliveries) < 2:
                deliveries += await received(source)
            await source.ack([delivery for delivery in deliveries if ids([delivery]) == ["a"]])
            await source.close()
            [back] = await received(other)
            assert ids([back]) == ["b"]
            if bench.features.releases_uncounted:
                assert back.deliveries == 1

    async def test_lost_connection_gives_back_and_counts(self) -> None:
        async with self.bench().hasty() as bench:
            source, other = await bench.source(), await bench.source()
            await bench.publish(Message(id="a"))
            held = await received(source)
            await bench.lose(source)
            again, _ = (await come(bench, other, "a"))["a"]
            assert again.redelivered
            if bench.features.counts:
                assert again.deliveries == 2
            await source.ack(held)
            await other.ack([again])
            await bench.publish(Message(id="b"))
            assert "b" in await come(bench, source, "b"), "after a loss, receive connects again"

    async def test_waiting_receive_ends_when_its_source_closes(self) -> None:
        async with self.bench() as bench:
            source = await bench.source()
            waiting = asyncio.create_task(received(source))
            await bench.heard(source)
            await source.close()
            with pytest.raises(BrokerUnavailable):
                await waiting

    async def test_source_that_is_not_open_says_so(self) -> None:
        async with self.bench() as bench:
            source = bench.make_source()
            with pytest.raises(BrokerUnavailable):
                await received(source)
            await source.close()

    async def test_closed_source_can_be_opened_again(self) -> None:
        async with self.bench() as bench:
            source = await bench.source()
            await source.close()
            await source.close()
            await source.open()
            await bench.publish(Message(id="a"))
            assert ids(await received(source)) == ["a"]

    async def test_answers_for_nothing_are_fine(self) -> None:
        async with self.bench() as bench:
            source = await bench.source()
            await source.ack([])
            await source.release([])
            await source.extend([], 10)
