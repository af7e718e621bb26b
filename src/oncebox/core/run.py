"""The two runners: one text of decisions, performed on a blocking or on an awaiting connection.

`perform(step)` answers a step or raises; in the async world it may return an awaitable instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from oncebox.core.steps import Op, Step

T = TypeVar("T")
Perform = Callable[[Step], Any]


def is_awaited(reply: object) -> bool:
    """Whether a reply is still to come. Asked at every step: the standard library's way takes ten times as long."""
    return hasattr(type(reply), "__await__")


def run(op: Op[T], perform: Perform) -> T:
    """Drive `op` to its end on a blocking connection."""
    try:
        step = next(op)
        while True:
            try:
                reply = perform(step)
            except BaseException as error:
                step = op.throw(error)
            else:
                step = op.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value


async def run_async(op: Op[T], perform: Perform) -> T:
    """Drive `op` to its end, awaiting what `perform` leaves to be awaited."""
    try:
        step = next(op)
        while True:
            try:
                reply = perform(step)
                if reply is not None and hasattr(type(reply), "__await__"):  # `is_awaited`, without the call
                    reply = await reply
            except BaseException as error:
                step = op.throw(error)
            else:
                step = op.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value
