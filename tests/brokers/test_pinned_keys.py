"""A queue that pins keys: one consumer at a time per key, in order."""

from oncebox.brokers.memory import Memory, MemorySource
from oncebox.clock import FakeClock
from oncebox.message import Message
from tests.brokers.suite import ids, received

CLOCK = FakeClock()


async def pinned(*messages: Message) -> tuple[Memory, MemorySource, MemorySource]:
    memory = Memory(clock=CLOCK)
    first = memory.queue("payments", pins_keys=True, visibility_seconds=30)
    second = memory.queue("payments")
    await first.open()
    await second.open()
    memory.put("payments", *messages)
    return memory, first, second


def keyed(*names: str) -> list[Message]:
    """`a1` is a message of key `a`."""
    return [Message(id=name, key=name[0]) for name in names]


async def test_key_in_flight_keeps_its_others_back() -> None:
    memory, first, second = await pinned(*keyed("a1", "a2", "b1", "a3", "b2"))
    assert first.pins_keys
    held = await received(first, limit=1)
    assert ids(held) == ["a1"]
    assert ids(await received(second, limit=1)) == ["b1"]
    memory.put("payments", Message(id="free"))
    assert ids(await received(second)) == ["free"]
    await first.ack(held)
    assert ids(await received(second)) == ["a2", "a3"]
    assert memory.stats()["payments"].ready == 1


async def test_batch_may_hold_several_of_a_key_in_order() -> None:
    _, first, _ = await pinned(*keyed("a1", "b1", "a2", "b2"))
    assert ids(await received(first)) == ["a1", "b1", "a2", "b2"]


async def test_nacked_message_blocks_its_key_until_it_is_back() -> None:
    _, first, second = await pinned(*keyed("a1", "a2", "b1"))
    [delivery] = await received(first, limit=1)
    await first.nack(delivery, 10)
    assert ids(await received(second)) == ["b1"]
    CLOCK.advance(10)
    assert ids(await received(second)) == ["a1", "a2"]


async def test_what_times_out_or_is_lost_comes_back_before_its_successors() -> None:
    _, first, second = await pinned(*keyed("a1", "a2", "a3"))
    await received(first, limit=1)
    CLOCK.advance(30)
    assert ids(await received(second, limit=2)) == ["a1", "a2"]
    second.drop()
    assert ids(await received(first)) == ["a1", "a2", "a3"]


async def test_key_stays_held_until_the_last_of_a_batch_is_answered() -> None:
    memory, first, second = await pinned(*keyed("a1", "a2", "a3"))
    one, two = await received(first, limit=2)
    await first.ack([one])
    memory.put("payments", Message(id="b1", key="b"))
    assert ids(await received(second)) == ["b1"]
    await first.nack(two, 0)
    assert ids(await received(second)) == ["a2", "a3"]


async def test_dead_letter_frees_its_key() -> None:
    memory = Memory(clock=CLOCK)
    source = memory.queue("payments", pins_keys=True, deliveries_max=1, dead_letter="dead")
    await source.open()
    memory.put("payments", *keyed("a1", "a2"))
    [delivery] = await received(source, limit=1)
    await source.nack(delivery, 10)
    assert ids(await received(source)) == ["a2"]
