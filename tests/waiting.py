"""Waiting with a bound, instead of sleeping for a guess."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_SECONDS = 0.01
_PAUSE_SECONDS_MAX = 0.05


def eventually(predicate: Callable[[], T], seconds: float = 30) -> T:
    """Poll `predicate` until it returns something truthy, and return that.

    Raises AssertionError naming the predicate when `seconds` have passed.
    An exception from the predicate is not caught: a broken probe must not look like a slow one.
    """
    began = time.monotonic()
    while not (value := predicate()):
        if (waited := time.monotonic() - began) >= seconds:
            raise AssertionError(_too_late(predicate, seconds))
        time.sleep(_pause(waited))
    return value


async def eventually_async(predicate: Callable[[], T | Awaitable[T]], seconds: float = 30) -> T:
    """As `eventually`, without blocking the event loop; the predicate may be a coroutine function."""
    began = time.monotonic()
    while True:
        value = predicate()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if (waited := time.monotonic() - began) >= seconds:
            raise AssertionError(_too_late(predicate, seconds))
        await asyncio.sleep(_pause(waited))


def _pause(waited: float) -> float:
    """A twentieth of what was waited already, within bounds: to ask a database a hundred times a second costs
    as much as what is waited for."""
    return min(max(_PAUSE_SECONDS, waited / 20), _PAUSE_SECONDS_MAX)


def _too_late(predicate: Callable[..., object], seconds: float) -> str:
    name = getattr(predicate, "__qualname__", repr(predicate))
    return f"{name} was not true within {seconds:g} s"
