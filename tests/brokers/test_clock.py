import time

import pytest

from oncebox.clock import Clock, FakeClock, SystemClock


def test_system_clock_is_the_monotonic_one_and_never_jumps() -> None:
    clock: Clock = SystemClock()
    before = time.monotonic()
    assert before <= clock.monotonic() <= time.monotonic()
    clock.watch(pytest.fail)()


def test_fake_clock_moves_only_when_told_and_tells_its_watchers() -> None:
    clock = FakeClock(start_seconds=5)
    seen: list[float] = []
    stop = clock.watch(lambda: seen.append(clock.monotonic()))
    clock.advance(2.5)
    stop()
    clock.advance(1)
    assert (seen, clock.monotonic()) == ([7.5], 8.5)


def test_fake_clock_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="back"):
        FakeClock().advance(-1)
