"""Batches that keep meeting on the same rows go one after the other, and try side by side again later."""

from __future__ import annotations

import asyncio
import threading

import pytest

from oncebox.core.run import Perform
from oncebox.core.steps import Commit, Rollback, Save, Step
from oncebox.core.work import Work
from oncebox.engines.queries import load
from oncebox.policy import Policy
from oncebox.runtime.turns import LONGEST_SECONDS, SHORTEST_SECONDS, Hands, Turns
from tests.waiting import eventually

BATCH = Save()
MOVED = Save(again=True)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(clock: Clock) -> Turns:
    return Turns(clock, patience_seconds=60)


@pytest.fixture
def works(turns: Turns) -> list[Work]:
    made = [Work("c", load("sqlite"), Policy(batch=64), slot=slot) for slot in range(2)]
    for work in made:
        turns.join(work)
    return made


def meet(work: Work, times: int) -> None:
    for _ in range(times):
        work.conflicted()


def test_first_meetings_halve_and_nobody_waits(turns: Turns, works: list[Work]) -> None:
    meet(works[0], 2)
    assert works[0].limit == 16
    assert not turns.is_crowded


def test_batches_that_are_none_any_more_take_turns_with_whole_ones(turns: Turns, works: list[Work]) -> None:
    meet(works[1], 1)
    meet(works[0], 3)
    assert turns.is_crowded
    assert [work.limit for work in works] == [64, 64]


def test_worker_that_is_alone_has_nobody_to_wait_for(turns: Turns) -> None:
    work = Work("c", load("sqlite"), Policy(batch=64))
    turns.join(work)
    meet(work, 6)
    assert work.limit == 1, "another process is in the way: smaller is all that helps"
    assert not turns.is_crowded


def test_side_by_side_is_tried_again_ever_more_seldom_until_it_is_calm(
    turns: Turns, works: list[Work], clock: Clock
) -> None:
    def crowded_for() -> float:
        meet(works[0], 3)
        began = clock.now
        while turns.is_crowded:
            clock.now += 0.5
        return clock.now - began

    assert [crowded_for() for _ in range(3)] == [SHORTEST_SECONDS, 2 * SHORTEST_SECONDS, 4 * SHORTEST_SECONDS]
    assert max(crowded_for() for _ in range(6)) == LONGEST_SECONDS
    clock.now += LONGEST_SECONDS + 1
    assert crowded_for() == SHORTEST_SECONDS


def in_turn(turns: Turns, work: Work, log: list[tuple[int, str]], is_async: bool = False) -> Perform:
    def perform(step: Step) -> None:
        log.append((work.slot, type(step).__name__))

    hands: Hands = dict.fromkeys((Save, Commit, Rollback), perform)
    turns.in_turn(work, hands, is_async)
    return lambda step: hands[type(step)](step)


@pytest.fixture
def log() -> list[tuple[int, str]]:
    return []


@pytest.mark.parametrize("end", [Commit("t"), Rollback()])
def test_thread_waits_until_the_other_batch_has_ended(
    turns: Turns, works: list[Work], log: list[tuple[int, str]], end: Step
) -> None:
    meet(works[0], 3)
    first, second = (in_turn(turns, work, log) for work in works)
    first(BATCH)
    thread = threading.Thread(target=lambda: (second(BATCH), second(end)), daemon=True)
    thread.start()
    first(MOVED)  # in the midst of it: neither waits nor lets anybody in
    assert (1, "Save") not in log
    first(end)
    thread.join(20)
    assert log.index((0, type(end).__name__)) < log.index((1, "Save"))


def test_thread_that_lost_its_connection_lets_the_next_one_in(
    turns: Turns, works: list[Work], log: list[tuple[int, str]]
) -> None:
    meet(works[0], 3)
    first, second = (in_turn(turns, work, log) for work in works)
    first(BATCH)
    turns.leave(works[1])  # not its turn: nothing to give away
    threading.Thread(target=lambda: second(BATCH), daemon=True).start()
    assert (1, "Save") not in log
    turns.leave(works[0])
    eventually(lambda: (1, "Save") in log, 20)


async def test_task_waits_and_a_cancelled_one_takes_no_turn(
    turns: Turns, works: list[Work], log: list[tuple[int, str]]
) -> None:
    meet(works[0], 3)
    first, second = (in_turn(turns, work, log, is_async=True) for work in works)
    await first(BATCH)
    given_up = asyncio.create_task(second(BATCH))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    waiting = asyncio.create_task(second(BATCH))
    await asyncio.sleep(0)
    assert (1, "Save") not in log
    await first(Commit("t"))
    await waiting
    assert log[-2:] == [(0, "Commit"), (1, "Save")]
    await second(Rollback())
    await first(BATCH)


def test_thread_goes_on_without_a_turn_rather_than_hold_its_transaction_open(
    works: list[Work], clock: Clock, log: list[tuple[int, str]]
) -> None:
    turns = Turns(clock, patience_seconds=0.01)
    for work in works:
        turns.join(work)
    meet(works[0], 3)
    first, second = (in_turn(turns, work, log) for work in works)
    first(BATCH)
    second(BATCH)
    second(Commit("t"))
    assert turns.is_crowded
    first(Commit("t"))
    assert log == [(0, "Save"), (1, "Save"), (1, "Commit"), (0, "Commit")]


async def test_task_goes_on_without_a_turn_rather_than_hold_its_transaction_open(
    works: list[Work], clock: Clock, log: list[tuple[int, str]]
) -> None:
    turns = Turns(clock, patience_seconds=0.01)
    for work in works:
        turns.join(work)
    meet(works[0], 3)
    first, second = (in_turn(turns, work, log, is_async=True) for work in works)
    await first(BATCH)
    await second(BATCH)
    await second(Commit("t"))
    await first(Commit("t"))
    await second(BATCH)
    assert log[:4] == [(0, "Save"), (1, "Save"), (1, "Commit"), (0, "Commit")]


def test_worker_without_batches_is_left_alone(turns: Turns) -> None:
    work = Work("c", load("sqlite"), Policy())
    hands: Hands = dict.fromkeys((Save, Commit, Rollback), print)
    turns.in_turn(work, hands, is_async=False)
    assert set(hands.values()) == {print}
