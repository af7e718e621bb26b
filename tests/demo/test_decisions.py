"""Schedule and verdict: what is decided before and after a run, without one."""

from collections import Counter

import pytest

from oncebox.demo.schedule import WORKERS, Schedule, plan
from oncebox.demo.verdict import Figures, Report, counted, sentence


def count(schedule: Schedule, charges: Counter[str]) -> Figures:
    return counted(schedule, charges, deliveries=30, kills=2, seconds=4.0)


def test_a_seed_decides_payments_duplicates_and_kills() -> None:
    schedule = plan(100, 30, 8, seed=5)
    assert schedule == plan(100, 30, 8, seed=5)
    assert schedule != plan(100, 30, 8, seed=6)
    assert len({payment.id for payment in schedule.payments}) == 100
    assert len(schedule.order) == 130
    assert set(schedule.order) == set(range(100))
    assert len(schedule.kills) == 8


def test_kills_are_due_while_messages_are_left() -> None:
    for messages in (1, 2, 50):
        schedule = plan(messages, 0, 40, seed=1)
        assert all(0 <= kill.after_acks < messages for kill in schedule.kills)
        assert {kill.slot for kill in schedule.kills} <= set(range(WORKERS))
        moments = [kill.after_acks for kill in schedule.kills]
        assert moments == sorted(moments)


def test_payments_that_are_sent_again_are_known() -> None:
    schedule = plan(50, 20, 0, seed=9)
    times = Counter(schedule.payments[index].id for index in schedule.order)
    assert schedule.sent_again == {payment for payment, sent in times.items() if sent > 1}
    assert plan(50, 0, 0, seed=9).sent_again == frozenset()


def test_charges_are_compared_with_what_was_sent() -> None:
    schedule = plan(10, 5, 0, seed=4)
    charges = Counter(payment.id for payment in schedule.payments)
    assert count(schedule, charges).clean
    again = next(iter(schedule.sent_again))
    once = [payment.id for payment in schedule.payments if payment.id not in schedule.sent_again]
    charges.update([again, once[0], once[0], "pay-of-nobody"])
    del charges[once[1]]
    figures = count(schedule, charges)
    assert (figures.messages, figures.effects, figures.lost) == (10, 13, 1)
    assert (figures.doubled, figures.doubled_by_kills, figures.unknown) == (2, 1, 1)
    assert figures.rate == 2.5
    assert not figures.clean


def figures(lost: int = 0, doubled: int = 0, by_kills: int = 0, unknown: int = 0) -> Figures:
    return Figures(
        deliveries=12, kills=1, messages=10, effects=10, lost=lost, doubled=doubled,
        doubled_by_kills=by_kills, unknown=unknown, seconds=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("unprotected", "oncebox", "said"),
    [
        (
            figures(doubled=5, by_kills=2),
            figures(),
            "charged 5 payments more than once (3 because they came twice, 2 because a worker died between its",
        ),
        (figures(doubled=5), figures(), "duplicates, oncebox charged each of the 10 exactly once."),
        (figures(lost=2), figures(), "The usual handler lost 2 that it had acked; through"),
        (figures(), figures(), "nothing hit the usual handler this time"),
        (figures(), figures(doubled=1), "oncebox broke its promise: 0 lost, 1 doubled, 0 unknown"),
        (figures(), figures(lost=1), "oncebox broke its promise: 1 lost"),
        (figures(), figures(unknown=1), "oncebox broke its promise"),
    ],
)
def test_one_sentence_says_what_it_means(unprotected: Figures, oncebox: Figures, said: str) -> None:
    report = Report(seed=1, database="sqlite", duplicates=2, unprotected=unprotected, oncebox=oncebox)
    assert said in sentence(report)
