"""One queue by hand: no loop, no clock, no lock."""

from typing import NoReturn

from oncebox.brokers.queue import Queue
from oncebox.brokers.stored import QueueOptions, Stored


def never(queue: Queue, stored: Stored, now: float) -> NoReturn:
    raise AssertionError


def test_what_is_answered_leaves_no_deadlines_behind() -> None:
    queue = Queue("payments", QueueOptions(visibility_seconds=30), never)
    queue.put(Stored(b"slow"), now=0)
    queue.take(1, now=0, holder=2)
    for number in range(10_000):
        queue.put(Stored(b""), now=number / 1000)
        [delivery] = queue.take(1, number / 1000, holder=1)
        queue.ack([delivery.tag], holder=1, now=number / 1000)
    assert len(queue._deadlines) < 2_000
    assert (queue.depth, queue.held, queue.next_due()) == (1, {2: 1}, 30)


def test_extending_never_shortens() -> None:
    queue = Queue("payments", QueueOptions(visibility_seconds=30), never)
    queue.put(Stored(b""), now=0)
    [delivery] = queue.take(1, now=0, holder=1)
    queue.extend([delivery.tag], 5, holder=1, now=0)
    assert queue.next_due() == 30
    queue.extend([delivery.tag], 31, holder=1, now=0)
    assert queue.next_due() == 31
    queue.settle(31)
    assert queue.deliverable


def test_message_that_comes_back_keeps_its_place() -> None:
    queue = Queue("payments", QueueOptions(), never)
    for body in (b"a", b"b", b"c"):
        queue.put(Stored(body), now=0)
    first, second = queue.take(2, now=0, holder=1)
    queue.release([second.tag], holder=1, now=1)
    queue.nack(first.tag, 5, holder=1, now=1)
    assert [delivery.body for delivery in queue.take(1, now=2, holder=1)] == [b"b"]
    assert [delivery.body for delivery in queue.take(9, now=6, holder=1)] == [b"a", b"c"]


def test_batch_stops_at_its_bytes_but_not_before_one() -> None:
    queue = Queue("payments", QueueOptions(), never)
    for body in (b"aaaa", b"b", b"b"):
        queue.put(Stored(body, size=len(body)), now=0)
    assert len(queue.take(9, now=0, holder=1, bytes_max=1)) == 1
    assert len(queue.take(9, now=0, holder=1, bytes_max=2)) == 2
