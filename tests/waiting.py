"""Waiting with a bound, instead of sleeping for a guess."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_SECONDS = 0.01


def eventually(predicate: Callable[[], T], seconds: float = 30) -> T:
    """Poll `predicate` until it returns something truthy, and return that.

    Raises AssertionError naming the predicate when `seconds` have passed.
    An exception from the predicate is not caught: a broken probe must not look like a slow one.
    """
    deadline = time.monotonic() + seconds
    while not (value := predicate()):
        if time.monotonic() >= deadline:
            raise AssertionError(_too_late(predicate, seconds))
        time.sleep(_PAUSE_SECONDS)
    return value


async def eventually_async(predicate: Callable[[], T | Awaitable[T]], seconds: float = 30) -> T:
    """As `eventually`, without blocking the event loop; the predicate may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        value = predicate()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(_too_late(predicate, seconds))
        await asyncio.sleep(_PAUSE_SECONDS)


def _too_late(predicate: Callable[..., object], seconds: float) -> str:
    name = getattr(predicate, "__qualname__", repr(predicate))
    return f"{name} was not true within {seconds:g} s"
