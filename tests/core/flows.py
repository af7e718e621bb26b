"""What flows need when they are driven by hand: a `Work` without chance or time, and items for it."""

import itertools
import random
from collections.abc import Callable
from typing import Any

from oncebox.core.work import Item, Work
from oncebox.engines.queries import load
from oncebox.identity import fingerprint
from oncebox.message import Message
from oncebox.policy import Backoff, Policy


class Handled:
    """What a flow looks at in a handler."""

    def __init__(self, name: str = "handler", *, batch: bool = False) -> None:
        self.name = name
        self.batch = batch


def work(dialect: str = "postgresql", **words: Any) -> Work:
    """A worker's side; keywords of `Work` (monotonic, types, …) apart, they are words of policy."""
    given = {
        word: words.pop(word) for word in ("monotonic", "types", "long_types", "handler") if word in words
    }
    numbers = itertools.count(1)
    return Work(
        "billing",
        load(dialect),
        Policy(**{"retry": Backoff(attempts=3), **words}),
        worker="w",
        slot=1,
        jitter=random.Random(7),
        token=lambda: f"t{next(numbers)}",
        **given,
    )


def item(identity: str = "evt-1", *, handler: Any = None, **words: Any) -> Item:
    """One delivery on its way."""
    message = Message(id=identity, **{"type": "paid", "payload": {"n": 1}, **words})
    return Item(message, fingerprint(message.type, message.payload), handler or Handled())


def known(
    one: Item,
    *,
    state: int = 0,
    lazy: bool = False,
    queued: bool = False,
    reason: str | None = None,
    body: bytes | None = None,
    fingerprint: bytes | None = None,
) -> tuple[object, ...]:
    """A row of `lookup`, as for another delivery of the same message unless said otherwise."""
    message = one.message
    mark = one.fingerprint if fingerprint is None else fingerprint
    return (message.source, message.id, message.type, mark, state, lazy, queued, reason, body)


def queued(seq: int, *, attempts: int = 0, deaths: int = 0, token: str | None = None) -> tuple[object, ...]:
    """A row of the queue, as `take` gives it."""
    payload = b'{"n":1}'
    mark = fingerprint("paid", payload)
    return (
        seq,
        "",
        f"evt-{seq}",
        "paid",
        mark,
        None,
        payload,
        b"",
        "application/json",
        "{}",
        attempts,
        deaths,
        token,
        None,
        None,
    )


def ticking(*seconds: float) -> Callable[[], float]:
    """A clock that shows these readings, then stands still."""
    readings = list(seconds)
    return lambda: readings.pop(0) if len(readings) > 1 else readings[0]
