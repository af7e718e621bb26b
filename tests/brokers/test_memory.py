"""`Memory`: the suite, and what it does beyond it."""

import asyncio
import threading

import pytest

from oncebox.brokers.contract import Delivery, Sink, Source
from oncebox.brokers.memory import Memory
from oncebox.brokers.remote import RemoteMemory
from oncebox.clock import FakeClock
from oncebox.errors import ConfigError, MessageError, QueueFull, TooLarge
from oncebox.identity import Identity, field
from oncebox.message import Message
from tests.brokers.benches import MemoryBench
from tests.brokers.suite import PATIENCE_SECONDS, Bench, BrokerSuite, ids, received


class TestMemory(BrokerSuite):
    def bench(self) -> Bench:
        return MemoryBench()


async def opened(source: Source) -> Source:
    await source.open()
    return source


async def test_source_and_topic_fit_the_contract() -> None:
    memory = Memory()
    source: Source = memory.queue("payments")
    sink: Sink = memory.topic("events")
    assert source.in_process
    assert source.counts_deliveries
    assert (source.name, sink.name) == ("payments", "events")
    assert source.redelivery_horizon_seconds is None


async def test_delayed_message_is_not_there_before_its_time() -> None:
    clock = FakeClock()
    memory = Memory(clock=clock)
    source = await opened(memory.queue("payments"))
    memory.put("payments", Message(id="later"), delay_seconds=60)
    memory.put("payments", Message(id="now"))
    first = await received(source)
    assert ids(first) == ["now"]
    await source.ack(first)
    waiting = asyncio.create_task(received(source))
    await asyncio.sleep(0)
    clock.advance(59)
    memory.put("payments", Message(id="meanwhile"))
    assert ids(await waiting) == ["meanwhile"]
    waiting = asyncio.create_task(received(source))
    await asyncio.sleep(0)
    clock.advance(1)
    assert ids(await waiting) == ["later"]


async def test_real_clock_brings_back_what_is_due_to_a_waiting_receive() -> None:
    memory = Memory()
    source = await opened(memory.queue("payments", visibility_seconds=0.02))
    memory.put("payments", Message(id="a"))
    await received(source)
    [again] = await received(source)
    assert again.deliveries == 2
    await source.nack(again, 0.02)
    [third] = await received(source)
    assert third.deliveries == 3


async def test_nack_wakes_a_receive_that_already_waits() -> None:
    memory = Memory()
    source, other = await opened(memory.queue("payments")), await opened(memory.queue("payments"))
    memory.put("payments", Message(id="a"))
    [delivery] = await received(source)
    waiting = asyncio.create_task(received(other))
    await asyncio.sleep(0)
    # The waiter sleeps until the visibility ends; the delay is due long before that.
    await source.nack(delivery, 0.01)
    assert ids(await waiting) == ["a"]


async def test_stats_tell_what_happened() -> None:
    clock = FakeClock()
    memory = Memory(clock=clock)
    source = await opened(memory.queue("payments", visibility_seconds=10))
    memory.put("payments", Message(id="a"), Message(id="b"), duplicates=1)
    memory.put("payments", Message(id="c"), delay_seconds=100)
    first, second, third = await received(source, limit=3)
    await source.ack([first])
    await source.nack(second, 5)
    stats = memory.stats()["payments"]
    assert (stats.ready, stats.delayed, stats.in_flight, stats.depth) == (1, 2, 1, 4)
    assert (stats.published, stats.delivered, stats.acked, stats.nacked) == (5, 3, 1, 1)
    clock.advance(10)
    await source.ack([third])
    stats = memory.stats()["payments"]
    assert (stats.ready, stats.delayed, stats.in_flight) == (3, 1, 0)
    assert (stats.timed_out, stats.late) == (1, 1)
    [second] = await received(source, limit=1)
    assert second.redelivered
    await source.release([second])
    stats = memory.stats()["payments"]
    assert (stats.redelivered, stats.released, stats.acked) == (1, 1, 1)


async def test_drained_waits_until_nothing_is_left() -> None:
    memory = Memory()
    source = await opened(memory.queue("payments"))
    await memory.drained()
    memory.put("payments", Message(id="a"), Message(id="b"))
    drained = asyncio.create_task(memory.drained("payments"))
    deliveries = await received(source)
    await source.ack(deliveries[:1])
    await asyncio.sleep(0)
    assert not drained.done()
    await source.ack(deliveries[1:])
    await drained


async def test_too_many_deliveries_move_a_message_to_the_dead_letter_queue() -> None:
    clock = FakeClock()
    memory = Memory(clock=clock)
    source = await opened(
        memory.queue("payments", deliveries_max=3, dead_letter="payments.dead", visibility_seconds=10)
    )
    memory.put("payments", Message(id="poison", payload=b"x", key="k", headers=(("h", b"\xff"),)))
    [delivery] = await received(source)
    await source.release([delivery])
    for _ in range(2):
        [delivery] = await received(source)
        await source.nack(delivery, 0)
    [delivery] = await received(source)
    assert delivery.deliveries == 3
    dead = await opened(memory.queue("payments.dead"))
    waiting = asyncio.create_task(received(dead))
    await asyncio.sleep(0)
    clock.advance(10)
    [buried] = await waiting
    assert (ids([buried]), buried.body, buried.key) == (["poison"], b"x", "k")
    assert (buried.headers, buried.deliveries) == ((("h", b"\xff"),), 1)
    assert buried.properties["dead_letter_queue"] == "payments"
    assert memory.stats()["payments"].dead_lettered == 1
    await memory.drained()


async def test_waiting_for_dead_letters_notices_what_times_out_later() -> None:
    memory = Memory()
    source = await opened(
        memory.queue("payments", deliveries_max=1, dead_letter="dead", visibility_seconds=0.02)
    )
    dead = await opened(memory.queue("dead"))
    waiting = asyncio.create_task(received(dead))
    await asyncio.sleep(0)
    memory.put("payments", Message(id="a"))
    await received(source)
    assert ids(await waiting) == ["a"]


async def test_answer_on_another_source_is_ignored() -> None:
    memory = Memory()
    source, other = await opened(memory.queue("payments")), await opened(memory.queue("payments"))
    memory.put("payments", Message(id="a"))
    held = await received(source)
    await other.ack(held)
    await other.extend(held, 1000)
    stats = memory.stats()["payments"]
    assert (stats.in_flight, stats.acked, stats.late) == (1, 0, 2)


async def test_queue_that_is_never_empty_lets_the_loop_do_other_work() -> None:
    memory = Memory()
    source = await opened(memory.queue("payments"))
    memory.put("payments", *(Message(id=str(number)) for number in range(1000)))
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(other_work())
    for _ in range(1000):
        await source.ack(await source.receive(1))
    working.cancel()
    assert turns > 20


async def test_prefetch_bounds_what_one_source_holds() -> None:
    memory = Memory()
    source = await opened(memory.queue("payments", prefetch=2))
    other = await opened(memory.queue("payments"))
    memory.put("payments", *(Message(id=str(n)) for n in range(4)))
    held = await received(source)
    assert ids(held) == ["0", "1"]
    waiting = asyncio.create_task(received(source))
    await asyncio.sleep(0)
    assert ids(await received(other, limit=1)) == ["2"]
    assert not waiting.done()
    await source.ack(held[:1])
    assert ids(await waiting) == ["3"]


async def test_full_queue_takes_nothing() -> None:
    memory = Memory()
    source = await opened(memory.queue("payments", size_max=3))
    memory.put("payments", Message(id="a"), Message(id="b"))
    with pytest.raises(QueueFull, match="2 messages of at most 3"):
        memory.put("payments", Message(id="c"), duplicates=1)
    assert memory.stats()["payments"].depth == 2
    memory.put("payments", Message(id="c"))
    held = await received(source)
    with pytest.raises(QueueFull):
        memory.put("payments", Message(id="d"))
    await source.ack(held)
    memory.put("payments", Message(id="d"))


async def test_topic_copies_to_the_queues_that_are_bound_for_the_type() -> None:
    memory = Memory()
    everything, receipts = await opened(memory.queue("all")), await opened(memory.queue("receipts"))
    memory.bind("events", "all")
    memory.bind("events", "receipts", "receipt.requested")
    topic = memory.exchange("events")
    await topic.open()
    answers = await topic.publish([Message(id="a", type="paid"), Message(id="b", type="receipt.requested")])
    await topic.close()
    assert answers == [None, None]
    assert ids(await received(everything)) == ["a", "b"]
    assert ids(await received(receipts)) == ["b"]
    assert await memory.topic("nobody").publish([Message(id="c")]) == [None]


async def test_publication_with_a_topic_of_its_own_goes_there_and_a_forwarded_message_does_not() -> None:
    memory = Memory()
    for queue in ("here", "there"):
        memory.queue(queue)
    memory.bind("events", "here")
    memory.bind("audit", "there")
    async with memory.serve() as address, RemoteMemory(address) as remote:
        sinks: list[Sink] = [memory.topic("events"), remote.topic("events")]
        for number, topic in enumerate(sinks):
            published = [
                Message(id=f"a{number}"),
                Message(id=f"b{number}", provenance={"topic": "audit"}),
                Message(id=f"c{number}", provenance={"topic": "audit", "partition": 0, "offset": 7}),
            ]
            assert await topic.publish(published) == [None] * 3
            await topic.close()
    assert {name: figures.ready for name, figures in memory.stats().items()} == {"here": 4, "there": 2}


async def test_topic_confirms_each_message_by_itself() -> None:
    memory = Memory()
    memory.queue("small", size_max=1)
    memory.queue("large")
    memory.bind("events", "small")
    memory.bind("events", "large")
    too_large = Message(id="b", payload=bytes(33 * 1024 * 1024))
    answers = await memory.topic("events").publish([Message(id="a"), too_large, Message(id="c")])
    assert [type(answer) for answer in answers] == [type(None), TooLarge, QueueFull]
    assert memory.stats()["large"].published == 1, "a refused message is copied nowhere"


async def test_retention_ends_redelivery() -> None:
    clock = FakeClock()
    memory = Memory(clock=clock)
    source = await opened(memory.queue("payments", retention_seconds=100))
    assert source.redelivery_horizon_seconds == 100
    memory.put("payments", Message(id="old"))
    clock.advance(101)
    memory.put("payments", Message(id="new"))
    deliveries = await received(source)
    assert ids(deliveries) == ["new"]
    assert memory.stats()["payments"].lapsed == 1
    await source.ack(deliveries)
    await memory.drained()


async def test_raw_delivery_is_put_as_it_is() -> None:
    memory = Memory()
    source = await opened(memory.queue("payments"))
    memory.put("payments", Delivery(body=b"{", headers=(("x", b"1"),), properties={"type": "t"}, key="k"))
    [delivery] = await received(source)
    assert (delivery.body, delivery.headers, delivery.properties, delivery.key) == (
        b"{", (("x", b"1"),), {"type": "t"}, "k",
    )  # fmt: skip
    who = source.identity.resolve(delivery)
    assert (who.id, who.type) == (None, "t")
    with pytest.raises(MessageError):
        memory.put("payments", Delivery(body=b"", properties={"x": object()}))


async def test_type_and_identity_can_be_named_at_the_source() -> None:
    memory = Memory()
    source = await opened(
        memory.queue("payments", type="paid", identity=Identity(id=field("n"), source="bank"))
    )
    memory.put("payments", Delivery(body=b'{"n": 7}'))
    who = source.identity.resolve((await received(source))[0])
    assert (who.id, who.type, who.source) == ("7", "paid", "bank")
    with pytest.raises(ConfigError, match="named twice"):
        memory.queue("payments", type="paid", identity=Identity(type="other"))


async def test_changing_a_delivery_does_not_change_the_message() -> None:
    memory = Memory()
    source = await opened(memory.queue("payments"))
    memory.put("payments", Message(id="a"))
    [delivery] = await received(source)
    delivery.properties["message_id"] = "b"
    await source.release([delivery])
    assert ids(await received(source)) == ["a"]


@pytest.mark.parametrize(
    "words",
    [
        {"visibility_seconds": 0.0},
        {"size_max": 0},
        {"prefetch": 0},
        {"deliveries_max": 3},
        {"dead_letter": "dead"},
        {"dead_letter": "new", "deliveries_max": 3},
        {"dead_letter": "dead", "deliveries_max": 0},
        {"retention_seconds": 0.0},
    ],
)
def test_words_that_cannot_be_are_refused(words: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Memory().queue("new", **words)  # type: ignore[arg-type]


def test_queue_that_is_declared_keeps_its_options() -> None:
    memory = Memory()
    memory.queue("payments", visibility_seconds=5)
    memory.queue("payments", visibility_seconds=5)
    memory.queue("payments")
    with pytest.raises(ConfigError, match=r"visibility_seconds=5.*6"):
        memory.queue("payments", visibility_seconds=6)


def test_unknown_queue_is_named_with_those_that_are_known() -> None:
    memory = Memory()
    memory.queue("payments")
    with pytest.raises(ConfigError, match=r"'payment' \(known: 'payments'\)"):
        memory.put("payment", Message(id="a"))
    with pytest.raises(ConfigError):
        memory.bind("events", "payment")


def test_threads_with_loops_of_their_own_share_one_queue() -> None:
    memory = Memory()
    memory.queue("payments")
    count, workers = 600, 3
    start = threading.Barrier(workers + 1)
    seen: list[str] = []

    async def consume() -> None:
        source = await opened(memory.queue("payments"))
        await asyncio.to_thread(start.wait)
        while True:
            deliveries = await received(source, limit=7)
            work = [delivery for delivery in deliveries if ids([delivery]) != ["stop"]]
            seen.extend(ids(work))
            await source.ack(work)
            if len(work) < len(deliveries):
                # One stop is for this consumer, the others are for its neighbours.
                await source.ack(deliveries[-1:])
                await source.close()
                return

    def produce() -> None:
        start.wait()
        for number in range(count):
            memory.put("payments", Message(id=str(number)))
        memory.put("payments", Message(id="stop"), duplicates=workers - 1)

    threads = [threading.Thread(target=lambda: asyncio.run(consume())) for _ in range(workers)]
    threads.append(threading.Thread(target=produce))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(seen, key=int) == [str(number) for number in range(count)]
    stats = memory.stats()["payments"]
    assert (stats.depth, stats.acked) == (0, count + workers)
