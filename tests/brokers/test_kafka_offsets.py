"""How far a group may say it has come: never past anything unfinished. No broker, no clock."""

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from oncebox.brokers.contract import Delivery
from oncebox.brokers.kafka.desk import Desk
from oncebox.brokers.kafka.lanes import Lane
from oncebox.brokers.kafka.offsets import OffsetTracker

GAPS = st.lists(st.integers(min_value=1, max_value=4), min_size=1, max_size=40)


def offsets(start: int, gaps: Iterable[int]) -> list[int]:
    """Ascending, with holes: what compaction and transactions leave."""
    found = [start]
    for gap in gaps:
        found.append(found[-1] + gap)
    return found


@given(start=st.integers(0, 5), gaps=GAPS, data=st.data())
def test_position_is_the_first_unfinished_whatever_the_order_of_finishing(
    start: int, gaps: list[int], data: st.DataObject
) -> None:
    tracker = OffsetTracker()
    assert tracker.position() is None
    coming = offsets(start, gaps)
    read: list[int] = []
    unfinished: set[int] = set()
    last = start
    while coming or unfinished:
        if coming and (not unfinished or data.draw(st.booleans())):
            read.append(coming.pop(0))
            unfinished.add(read[-1])
            tracker.read([read[-1]])
        else:
            done = data.draw(st.sampled_from(sorted(unfinished)))
            unfinished.discard(done)
            tracker.finish([done])
            tracker.finish([done])
        position = tracker.position()
        assert position == (min(unfinished) if unfinished else read[-1] + 1)
        assert position >= last, "it never goes back while the log grows"
        assert tracker.span() == read[-1] + 1 - position
        assert len(tracker) == len(unfinished)
        last = position


@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=80),
)
def test_log_that_loses_its_end_is_never_passed_unread(steps: list[tuple[bool, int]]) -> None:
    tracker = OffsetTracker()
    unfinished: set[int] = set()
    last_read: int | None = None
    for reads, offset in steps:
        if reads:
            tracker.read([offset])
            unfinished.add(offset)
            last_read = offset
        else:
            tracker.finish([offset])
            unfinished.discard(offset)
        position = tracker.position()
        if last_read is None:
            assert position is None
        else:
            assert position is not None
            assert position == min({*unfinished, last_read + 1})


@given(
    reads=st.lists(st.lists(st.integers(0, 30), max_size=6), max_size=12),
    finished=st.lists(st.lists(st.integers(0, 30), max_size=6), max_size=12),
)
def test_many_at_once_are_the_same_as_one_by_one(reads: list[list[int]], finished: list[list[int]]) -> None:
    together, apart = OffsetTracker(), OffsetTracker()
    steps: Iterable[tuple[list[int], list[int]]] = zip_longest(reads, finished, fillvalue=[])
    for read, done in steps:
        together.read(read)
        for offset in read:
            apart.read([offset])
        together.finish(done)
        for offset in done:
            apart.finish([offset])
        assert together.position() == apart.position()
        assert (together.span(), len(together)) == (apart.span(), len(apart))


class Hand:
    """A desk with one partition, read to in order."""

    def __init__(self, *, keys: str = "", end: int | None = 0, **bounds: int) -> None:
        words: dict[str, Any] = {"window": 100, "buffer_max": 100, "buffer_bytes_max": 10_000, **bounds}
        self.desk = Desk(**words)
        self.lane = self.assign(end)
        self.read(keys)

    def assign(self, end: int | None = 0) -> Lane:
        self.desk.assign("orders", 0, end, 0)
        lane = self.desk.lane("orders", 0)
        assert lane is not None
        return lane

    def read(self, keys: str, start: int = 0) -> None:
        """One message per letter, which is its key; `.` has none."""
        self.desk.put(
            (
                self.lane,
                start + number,
                Delivery(body=b"%d" % (start + number), key=None if key == "." else key),
            )
            for number, key in enumerate(keys)
        )

    def take(self, limit: int = 100, now: float = 0.0) -> list[Delivery]:
        return self.desk.take(limit, now)

    def position(self) -> int | None:
        return self.lane.tracker.position()


def bodies(deliveries: Iterable[Delivery]) -> str:
    return "".join(delivery.body.decode() for delivery in deliveries)


def test_what_was_put_off_waits_with_its_key_and_nothing_else() -> None:
    hand = Hand(keys="ab")
    first, second = hand.take()
    hand.read("aab.", start=2)
    hand.desk.nack(first, 10.0)
    hand.desk.ack([second])
    assert bodies(hand.take()) == "45"
    assert hand.desk.next_due() == 10.0
    assert hand.position() == 0
    back = hand.take(now=10.0)
    assert bodies(back) == "023"
    assert [(each.deliveries, each.redelivered) for each in back] == [(2, True), (1, False), (1, False)]
    hand.desk.ack(back)
    assert hand.position() == 4, "what was taken meanwhile is unfinished"


def test_key_waits_for_all_that_were_put_off() -> None:
    hand = Hand(keys="aa")
    first, second = hand.take()
    hand.desk.nack(first, 5.0)
    hand.desk.nack(second, 9.0)
    hand.read("a", start=2)
    assert bodies(hand.take(now=5.0)) == ""
    assert bodies(hand.take(now=9.0)) == "012"


def test_released_ones_come_back_at_their_old_places() -> None:
    hand = Hand(keys="....")
    given_out = hand.take(3)
    hand.desk.release([given_out[2], given_out[0]])
    assert bodies(hand.take()) == "023"


def test_late_answers_do_not_touch_the_next_hand_out() -> None:
    hand = Hand(keys=".")
    [first] = hand.take()
    tag = first.tag
    hand.desk.release([first])
    [again] = hand.take()
    first.tag = tag
    hand.desk.ack([first])
    hand.desk.nack(first, 99.0)
    hand.desk.release([first])
    assert hand.position() == 0
    hand.desk.ack([again])
    assert hand.position() == 1


def test_partition_that_went_away_and_came_back_is_another_one() -> None:
    hand = Hand(keys="..")
    held = hand.take(1)
    old = hand.lane
    hand.desk.retire([old])
    hand.lane = hand.assign()
    hand.desk.ack(held)
    assert hand.take() == [], "what lay here went with the assignment"
    assert hand.desk.positions(hand.desk.lanes()) == []
    assert hand.desk.positions([old]) == []


def test_what_is_being_revoked_is_not_handed_out_and_may_be_answered() -> None:
    hand = Hand(keys="....")
    held = hand.take(3)
    hand.desk.recall([hand.lane])
    assert hand.take() == []
    assert not hand.desk.wait_until_answered([hand.lane], 0)
    hand.desk.ack(held[:1])
    hand.desk.nack(held[1], 0.0)
    hand.desk.release(held[2:])
    assert hand.desk.wait_until_answered([hand.lane], 0)
    assert hand.take(now=1.0) == []
    assert hand.desk.positions([hand.lane]) == [(hand.lane, 1)]


def test_position_is_told_once_and_again_when_the_broker_did_not_hear() -> None:
    hand = Hand(keys="..")
    first, second = hand.take()
    assert hand.desk.positions([hand.lane]) == [], "that is where it began"
    hand.desk.ack([second])
    assert hand.desk.positions([hand.lane]) == []
    hand.desk.ack([first])
    told = hand.desk.positions([hand.lane])
    assert told == [(hand.lane, 2)]
    assert hand.desk.positions([hand.lane]) == []
    hand.desk.unsent(told)
    assert hand.desk.positions([hand.lane]) == told


def test_last_word_on_a_partition_does_not_rest_on_a_commit_that_is_on_its_way() -> None:
    hand = Hand(keys="..")
    lanes = hand.desk.lanes()
    hand.desk.ack(hand.take())
    [(lane, position)] = hand.desk.positions(lanes)
    assert hand.desk.positions(lanes) == []
    assert hand.desk.positions(lanes, confirmed=True) == [(lane, position)]
    hand.desk.confirm([(lane, position)])
    assert hand.desk.positions(lanes, confirmed=True) == []


def test_bounds_are_kept_by_count_bytes_and_distance() -> None:
    hand = Hand(keys="....", buffer_max=4, window=6)
    assert hand.desk.is_full()
    assert not hand.desk.wait_for_room(0)
    hand.desk.ack(hand.take()[1:])
    assert hand.desk.wait_for_room(0)
    assert not hand.desk.is_ahead(hand.lane)
    hand.read("..", start=4)
    assert hand.desk.is_ahead(hand.lane), "offset 0 is unfinished, and six were read"
    heavy = Hand(buffer_bytes_max=10)
    heavy.desk.put([(heavy.lane, 0, Delivery(body=bytes(10)))])
    assert heavy.desk.is_full()
    heavy.take()
    assert not heavy.desk.is_full()


def test_only_what_was_there_at_assignment_may_be_known() -> None:
    lane = Lane("orders", 0, end=105, committed=100)
    assert [lane.may_be_known(offset, 10) for offset in (100, 104, 105)] == [True, True, False]
    far = Lane("orders", 0, end=1_000, committed=None)
    assert [far.may_be_known(offset, 10) for offset in (100, 109, 110)] == [True, True, False]
    assert Lane("orders", 0, end=None, committed=None).may_be_known(5, 10)
