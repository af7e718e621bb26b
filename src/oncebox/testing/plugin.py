"""pytest: what a test of a consumer needs, by the name of a fixture. Loaded by pytest itself.

Imports nothing of oncebox before a fixture is asked for: a plugin is loaded for every test run of the
environment it is installed in, and coverage begins after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from oncebox.brokers.memory import Memory
    from oncebox.clock import FakeClock
    from oncebox.testing.http import HttpRecorder


@pytest.fixture
def oncebox_clock() -> FakeClock:
    """A clock that stands still until the test moves it: `oncebox_clock.advance(30)`."""
    from oncebox.clock import FakeClock

    return FakeClock()


@pytest.fixture
def oncebox_broker(oncebox_clock: FakeClock) -> Memory:
    """An in-process broker whose visibility and delays go by `oncebox_clock`."""
    from oncebox.brokers.memory import Memory

    return Memory(clock=oncebox_clock)


@pytest.fixture
def oncebox_http() -> HttpRecorder:
    """A provider that is not there, for `httpx.Client(transport=oncebox_http)`; needs httpx."""
    pytest.importorskip("httpx")
    from oncebox.testing.http import HttpRecorder

    return HttpRecorder()
