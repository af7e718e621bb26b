"""The two runners: one text of decisions, performed on a blocking or on an awaiting connection.

`perform(step)` answers a step or raises; in the async world it may return an awaitable instead.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from types import CoroutineType
from typing import Any, TypeVar

from oncebox.core.steps import Op, Step

T = TypeVar("T")
Perform = Callable[[Step], Any]


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
                # Asked in this order because it is asked at every step.
                if reply is not None and (type(reply) is CoroutineType or isawaitable(reply)):
                    reply = await reply
            except BaseException as error:
                step = op.throw(error)
            else:
                step = op.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value
