"""What lies between Kafka's poller and the feed, without a cluster."""

import gc

import pytest

from oncebox.brokers.contract import Delivery
from oncebox.brokers.kafka.desk import Desk
from oncebox.brokers.kafka.lanes import Held, Lane


def alive() -> tuple[int, int]:
    gc.collect()
    objects = gc.get_objects()
    return sum(type(each) is Held for each in objects), sum(type(each) is Lane for each in objects)


def delivery() -> Delivery:
    return Delivery(body=b"x" * 100, headers=(), properties={}, provenance={}, key=None)


@pytest.mark.parametrize("answers", ["late", "none"])
def test_what_was_out_when_its_partition_went_is_not_kept(answers: str) -> None:
    desk = Desk(window=1000, buffer_max=1000, buffer_bytes_max=1 << 30)
    before = alive()
    for number in range(5):
        desk.assign("orders", 0, None, None)
        lane = desk.lane("orders", 0)
        assert lane is not None
        desk.put([(lane, 10 * number + n, delivery()) for n in range(10)])
        out = desk.take(10, 0.0)
        desk.retire([lane])
        if answers == "late":
            desk.ack(out[:4])
            desk.release(out[4:8])
            desk.nack(out[8], 1.0)
        del out, lane
    assert alive() == before


def test_what_was_out_when_it_was_read_again_is_not_kept() -> None:
    desk = Desk(window=1000, buffer_max=1000, buffer_bytes_max=1 << 30)
    desk.assign("orders", 0, None, None)
    lane = desk.lane("orders", 0)
    assert lane is not None
    before = alive()
    for _ in range(5):
        desk.put([(lane, 7, delivery())])
        [out] = desk.take(1, 0.0)
        del out
    desk.put([(lane, 7, delivery())])
    [out] = desk.take(1, 0.0)
    desk.ack([out])
    del out
    assert alive() == before
