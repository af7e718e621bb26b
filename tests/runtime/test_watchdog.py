"""The watchdog's thread is there while somebody may need it, and gone when nobody does."""

from __future__ import annotations

import time
from typing import Any

import pytest

from oncebox.runtime import watchdog
from oncebox.runtime.watchdog import Watchdog
from tests.waiting import eventually


class Cancelled:
    def __init__(self) -> None:
        self.times = 0

    def cancel(self) -> None:
        self.times += 1


def test_thread_ends_when_idle_and_the_next_handler_is_looked_after_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdog, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "_IDLE_LOOKS", 2)
    dog = Watchdog()
    for _ in range(3):
        session: Any = Cancelled()
        dog.enter(session, time.monotonic() - 1)
        eventually(lambda: session.times > 0)  # noqa: B023 - called at once
        thread = dog._thread
        assert thread is not None
        dog.leave(session)
        thread.join(20)
        assert not thread.is_alive()
        assert dog._thread is None
