"""A worker's two lines: what is its own, and what it shares with the consumer's other workers."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from oncebox.core.place import Place
from oncebox.core.work import Item
from oncebox.message import Message
from oncebox.runtime.feed import hand_out
from oncebox.runtime.mailbox import Mailbox, ThreadMailbox
from oncebox.runtime.workers import _batch
from tests.core.flows import work


def item(name: str, *, lane: str | None = None, key: str | None = None, place: Place | None = None) -> Item:
    made = Item(Message(id=name, key=key), b"")
    made.lane, made.place = lane, place
    return made


def names(*items: Item | None) -> list[str | None]:
    return [None if one is None else one.message.id for one in items]


class Arriving(deque[Item]):
    """Something comes right after the first look at it."""

    looks = 0

    def __bool__(self) -> bool:
        self.looks += 1
        return self.looks > 1 and len(self) > 0


@pytest.mark.parametrize("what", [{"lane": "a"}, {"place": Place("t", 0, 1)}], ids=["lane", "place"])
def test_what_comes_during_the_look_is_not_taken_out_of_its_order(what: Any) -> None:
    mailbox = ThreadMailbox()
    mailbox.items = Arriving([item("ordered", **what)])
    assert mailbox.take(loose=True) is None
    assert mailbox.active == []
    assert names(mailbox.take()) == ["ordered"]


def test_what_has_an_order_ends_a_chain_and_what_has_none_goes_on() -> None:
    mailbox = ThreadMailbox()
    mailbox.items.extend([item("one"), item("ordered", lane="a")])
    assert names(mailbox.take(loose=True), mailbox.take(loose=True)) == ["one", None]
    assert names(*mailbox.active) == ["one"]


def test_neither_line_waits_for_the_other_to_be_empty() -> None:
    mailbox = ThreadMailbox()
    mailbox.items.extend(item(f"own{n}") for n in range(3))
    mailbox.shared.extend(item(f"shared{n}") for n in range(3))
    taken = names(*(mailbox.take() for _ in range(7)))
    assert taken == ["own0", "shared0", "own1", "shared1", "own2", "shared2", None]


def sharing(count: int) -> tuple[list[Mailbox], deque[Item], list[int]]:
    """Mailboxes with one line for all, and who was rung."""
    boxes: list[Mailbox] = []
    shared: deque[Item] = deque()
    rung: list[int] = []
    for n in range(count):
        box = ThreadMailbox()
        box.shared = shared
        box.ring = lambda n=n: rung.append(n)  # type: ignore[method-assign, misc]
        boxes.append(box)
    return boxes, shared, rung


def test_as_many_are_woken_as_there_is_work_for_and_nobody_twice() -> None:
    boxes, shared, rung = sharing(4)
    for box in boxes[1:]:
        box.waiting = True
    hand_out(boxes, [item("one"), item("two")], shared=shared)
    assert rung == [1, 2]
    hand_out(boxes, [item("three"), item("four")], shared=shared)
    assert rung == [1, 2, 3]  # the others are up already, and look for more by themselves
    assert names(*(boxes[n].take() for n in (3, 0, 1, 2))) == ["one", "two", "three", "four"]


def test_what_has_a_key_is_for_one_worker_and_the_rest_for_any() -> None:
    boxes, shared, rung = sharing(2)
    hand_out(boxes, [item("a1", key="a"), item("free"), item("a2", lane="a")], shared=shared)
    [own] = [box for box in boxes if box.items]
    assert names(*own.items) == ["a1", "a2"]
    assert names(*shared) == ["free"]
    assert rung == [boxes.index(own)]


def test_batches_go_where_the_line_is_shortest() -> None:
    boxes, shared, _ = sharing(2)
    hand_out(boxes, [item(f"m{n}") for n in range(5)])
    assert [len(box.items) for box in boxes] == [3, 2]
    assert not shared


def test_what_is_settled_is_no_longer_put_back_whether_it_is_all_or_some() -> None:
    mailbox = ThreadMailbox()
    mailbox.items.extend(item(name) for name in "abcd")
    taken = mailbox.take_many(4)
    mailbox.settled([taken[2], taken[0]])
    assert names(*mailbox.active) == ["b", "d"]
    mailbox.settled([])
    assert names(*mailbox.active) == ["b", "d"]
    mailbox.put_back()
    assert names(*mailbox.items) == ["b", "d"]
    mailbox.settled(mailbox.take_many(2))
    mailbox.put_back()
    assert not mailbox.items


def test_a_batch_takes_only_what_can_go_together_and_leaves_the_rest_in_its_order() -> None:
    mailbox = ThreadMailbox()
    again = item("again")
    again.message = Message(id="again", deliveries=2)
    mailbox.items.extend([item("a"), item("b"), again, item("c")])
    worker = work(batch=10)
    assert names(*_batch(worker, mailbox, 1)) == ["a"]
    assert names(*_batch(worker, mailbox, 10)) == ["b"]
    assert names(*mailbox.active) == ["a", "b"]
    assert names(*mailbox.items) == ["again", "c"]
    mailbox.items.clear()
    assert _batch(worker, mailbox, 10) == []
