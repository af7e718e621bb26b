"""Consumer groups and positions, on librdkafka's mock cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.brokers.kafka_bench import Topic, kafka_cluster, take
from tests.brokers.suite import ids, received
from tests.servers.kafka import Kafka as Cluster
from tests.waiting import eventually_async

__all__ = ["kafka_cluster"]
pytestmark = pytest.mark.xdist_group("kafka")

LONE = {"session.timeout.ms": 60_000}
"""For a group of one, which never rebalances."""


def member(name: str) -> dict[str, Any]:
    """Settings of a member that leads the group when its name is the first of all.

    The mock ends a round as soon as its leader has sent the assignment. A follower that asks later is
    refused, and joins anew at once; and while somebody joins, the mock refuses commits, which a broker of
    Apache Kafka takes until the round's end. So whoever is to commit in a round must not lead it.
    """
    return {"group.instance.id": name}


@pytest.fixture
def topic(kafka_cluster: Cluster) -> Topic:
    return Topic(kafka_cluster)


async def test_position_waits_for_the_first_unfinished(topic: Topic) -> None:
    source = await topic.source(LONE)
    await topic.publish("a", "b", "c")
    a, b, c = await take(source, 3)
    await source.ack([b, c])
    await source.flush()
    assert await topic.committed() == [0]
    await source.ack([a])
    await source.flush()
    assert await topic.committed() == [3]
    await source.close()


async def test_positions_are_committed_by_themselves(topic: Topic) -> None:
    source = await topic.source(LONE, commit_every=0.1)
    await topic.publish("a")
    await source.ack(await received(source))
    async with asyncio.timeout(30):
        while await topic.committed() != [1]:
            pass
    await source.close()


async def test_put_off_message_lets_the_partition_go_on_and_is_read_again_after_a_death(topic: Topic) -> None:
    source = await topic.source()
    await topic.publish("a", key="k")
    [a] = await received(source)
    await source.nack(a, 1000)
    await topic.publish("b", key="other")
    await topic.publish("c", key="k")
    await topic.publish("d")
    others = await take(source, 2)
    assert ids(others) == ["b", "d"], "c is of the same key, and waits behind a"
    await source.ack(others)
    await source.flush()
    await source.drop()
    again = await take(source, 4)
    assert ids(again) == ["a", "b", "c", "d"]
    assert all(delivery.redelivered for delivery in again)
    await source.close()


async def test_revoked_partition_is_drained_and_its_position_goes_along(kafka_cluster: Cluster) -> None:
    topic = Topic(kafka_cluster, partitions=2)
    first = await topic.source(member("2"), drain=20.0)
    await eventually_async(lambda: len(first.partitions) == 2, 30)
    for number in range(20):
        await topic.publish(f"m{number}", key=str(number))
    held = await take(first, 20)
    joining = asyncio.create_task(topic.source(member("1"), drain=20.0))
    # It is asked to give one up, and does not before what is in hand is finished.
    await eventually_async(lambda: any(lane.recalled for lane in first._desk.lanes()), 30)
    assert len(first.partitions) == 2
    await first.ack(held)
    second = await joining
    await eventually_async(lambda: len(second.partitions) == 1 and len(first.partitions) == 1, 30)
    await topic.publish("last")
    waiting = [asyncio.create_task(received(source)) for source in (first, second)]
    done, late = await asyncio.wait(waiting, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert [ids(task.result()) for task in done] == [["last"]], "nothing that was acked comes again"
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    await first.close()
    await second.close()


async def test_revoked_partition_with_work_that_does_not_end_is_given_up_uncommitted(
    kafka_cluster: Cluster,
) -> None:
    topic = Topic(kafka_cluster, partitions=2)
    first = await topic.source(drain=0.0)
    await eventually_async(lambda: len(first.partitions) == 2, 30)
    for number in range(10):
        await topic.publish(f"m{number}", key=str(number))
    held = await take(first, 10)
    second = await topic.source()
    await eventually_async(lambda: len(second.partitions) == 1, 30)
    moved = {delivery.properties["message_id"] for delivery in held} - {
        delivery.properties["message_id"]
        for delivery in held
        if (topic.name, delivery.provenance["partition"]) in first.partitions
    }
    again = await take(second, len(moved))
    assert set(ids(again)) == moved
    assert all(delivery.redelivered for delivery in again)
    # They come late: the partition is another's, and so is its position.
    await first.ack(held)
    await first.flush()
    [place] = second.partitions
    assert (await topic.committed())[place[1]] == 0
    await first.close()
    await second.close()


async def test_handler_longer_than_the_poll_interval_keeps_its_partition(topic: Topic) -> None:
    config = {"max.poll.interval.ms": 6_000}
    source = await topic.source(config, prefetch=2, drain=1.0)
    await topic.publish(*(f"m{number}" for number in range(10)))
    held = await received(source, limit=1)
    # The buffer is full and stays so: the partition is paused, and polled all the same.
    await eventually_async(lambda: all(lane.paused for lane in source._desk.lanes()), 30)
    other = await topic.source(config, drain=1.0)
    await asyncio.sleep(7)
    assert (source.partitions, other.partitions) == ([(topic.name, 0)], [])
    await source.ack(held)
    rest = await take(source, 9)
    assert ids(held + rest) == [f"m{number}" for number in range(10)]
    await source.ack(rest)
    await source.flush()
    assert await topic.committed() == [10]
    await source.close()
    await other.close()


async def test_buffer_is_bounded_and_everything_comes_in_order(topic: Topic) -> None:
    source = await topic.source(LONE, prefetch=50)
    names = [f"m{number}" for number in range(1_000)]
    await topic.publish(*names)
    most = 0
    seen: list[str] = []
    while len(seen) < len(names):
        most = max(most, len(source._desk._fresh))
        deliveries = await received(source, limit=7)
        seen += ids(deliveries)
        await source.ack(deliveries)
    assert seen == names
    assert most < 50 + 101, "the bound, and what one more look at the client brings"
    await source.close()


async def test_partition_is_read_no_further_ahead_than_its_window(topic: Topic) -> None:
    source = await topic.source(LONE, window=20)
    await topic.publish(*(f"m{number}" for number in range(20)))
    first, *rest = await take(source, 20)
    await source.ack(rest)
    await eventually_async(lambda: all(lane.paused for lane in source._desk.lanes()), 30)
    await topic.publish("ahead")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await source.receive(10)
    await source.ack([first])
    assert ids(await received(source)) == ["ahead"]
    await source.close()
