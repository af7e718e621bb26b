"""The kit for users: their handler, their tables, everything that can happen to a message.

    def test_payment_has_one_effect(app: App) -> None:
        prove_once(app, Message(id="evt-1", type="payment.captured", payload={"amount": 100}))

Needs no test framework; `oncebox.testing.plugin` adds fixtures to pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncebox.brokers.memory import Memory
    from oncebox.clock import FakeClock
    from oncebox.testing.calls import (
        crash_at,
        crash_at_async,
        deliver,
        deliver_async,
        prove_once,
        prove_once_async,
    )
    from oncebox.testing.http import HttpCall, HttpRecorder
    from oncebox.testing.story import NotOnce, Proof

_HOMES = {
    "FakeClock": "oncebox.clock",
    "HttpCall": "oncebox.testing.http",
    "HttpRecorder": "oncebox.testing.http",
    "Memory": "oncebox.brokers.memory",
    "NotOnce": "oncebox.testing.story",
    "Proof": "oncebox.testing.story",
    "crash_at": "oncebox.testing.calls",
    "crash_at_async": "oncebox.testing.calls",
    "deliver": "oncebox.testing.calls",
    "deliver_async": "oncebox.testing.calls",
    "prove_once": "oncebox.testing.calls",
    "prove_once_async": "oncebox.testing.calls",
}

__all__ = [
    "FakeClock",
    "HttpCall",
    "HttpRecorder",
    "Memory",
    "NotOnce",
    "Proof",
    "crash_at",
    "crash_at_async",
    "deliver",
    "deliver_async",
    "prove_once",
    "prove_once_async",
]


def __getattr__(name: str) -> Any:
    """Loaded when first asked for: the plugin is imported by every run of pytest, needed or not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'oncebox.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
