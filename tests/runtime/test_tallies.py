"""Counts of outcomes, from many threads, and where nobody drains them."""

from threading import Thread

from oncebox import Message
from oncebox.core.outcomes import DONE, KEPT
from oncebox.runtime.tallies import TOLD_MAX, Tallies


def test_nothing_is_lost_between_those_who_count_and_those_who_drain() -> None:
    tallies = Tallies()
    message = Message(id="evt-1", type="paid")
    drained: list[dict[str, object]] = []

    def count() -> None:
        for _ in range(5_000):
            tallies.add("billing", message, DONE)

    def drain() -> None:
        for _ in range(200):
            drained.extend(tallies.drain())

    threads = [Thread(target=each) for each in (count, drain, count, drain, count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drained.extend(tallies.drain())
    assert sum(int(str(row["n"])) for row in drained) == 15_000
    assert not tallies.drain()


def test_what_nobody_drains_is_added_up() -> None:
    tallies = Tallies()
    for _ in range(3 * TOLD_MAX):
        tallies.add("billing", Message(id="evt-1", type="paid"), KEPT)
    assert len(tallies._told) < TOLD_MAX
    [row] = tallies.drain()
    assert row == {"consumer": "billing", "type": "paid", "outcome": "stored", "n": 3 * TOLD_MAX}
