"""What handlers do in these tests, and the messages they get."""

import threading
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from oncebox import Message, Tx
from tests.core.drivers import Db
from tests.waiting import eventually, eventually_async

PATIENCE_SECONDS = 30.0


class Call(NamedTuple):
    """What a body gets: its handler's arguments, whatever the driver."""

    payload: Any
    message: Any
    tx: Tx
    db: Db


Body = Callable[[Call], Coroutine[Any, Any, Any]]


def event(id: str = "evt-1", *, type: str = "paid", payload: Any = {}, **words: Any) -> Message:  # noqa: A002, B006
    """A message that any handler here can take."""
    return Message(id=id, type=type, payload=payload, **words)


async def effect(call: Call) -> Any:
    """The plainest body: one effect per message, its id as the result."""
    await call.db.effect(call.message.id)
    return {"effect": call.message.id}


class Gate:
    """An event that a body waits for: a thread blocks, a task awaits."""

    def __init__(self, is_async: bool) -> None:
        self._is_async = is_async
        self._open = threading.Event()
        self.reached = threading.Event()
        """Set when somebody has come to wait."""

    def open(self) -> None:
        self._open.set()

    async def wait(self) -> None:
        self.reached.set()
        if self._is_async:
            await eventually_async(self._open.is_set, PATIENCE_SECONDS)
        else:
            eventually(self._open.is_set, PATIENCE_SECONDS)

    async def reached_by_somebody(self) -> None:
        """For the test: until a body waits here."""
        await eventually_async(self.reached.is_set, PATIENCE_SECONDS)
