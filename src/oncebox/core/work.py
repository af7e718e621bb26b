"""What a flow works on: an item on its way, and the consumer's side of the bargain."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from oncebox.core.alone import Alone
from oncebox.core.outcomes import Outcome, Reason, Status
from oncebox.core.outgoing import Outlets, Publication, Sending, Tx
from oncebox.core.queries import Queries, Query
from oncebox.core.steps import Call
from oncebox.message import Message
from oncebox.policy import Policy

if TYPE_CHECKING:
    from oncebox.core.place import Place

__all__ = ["Item", "Tx", "Work", "new_token"]

_tokens = itertools.count(1)
_origin = f"{os.urandom(6).hex()}.{os.getpid()}"


def new_token() -> str:
    """A name for one transaction, never used twice: not in this process, nor in a forked child."""
    return f"{_origin}.{next(_tokens)}"


def _in_child() -> None:
    global _origin
    _origin = f"{_origin.partition('.')[0]}.{os.getpid()}"


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_in_child)


OVERDUE_SECONDS = 1.0
"""An inline worker that always has a next message looks at its queue all the same, this often."""


class Item:
    """One message on its way through a flow. `outcome` is set before it is settled.

    What most messages never need stands on the class: to set it on each of them would cost more than to look it up.
    """

    refusal: tuple[Reason, BaseException] | None = None
    """Why no handler can have it; known before a transaction is opened."""
    outcome: Outcome | None = None
    observed: Status | None = None
    """What a consumer that only observes calls it; None for what is new, and for all others."""
    result: Any = None
    publications: Sequence[Publication] = ()
    sendings: Sequence[Sending] = ()
    marked = False
    doubtful = False
    """A duplicate of a row that may not be on disk yet: flush before any ack."""
    losses = 0
    """How often the connection was lost while its handler ran."""
    seq = 0
    place: Place | None = None
    """Where it lies in its partition; None where duplicates are told by the ledger."""
    lane: str | None = None
    """What it is ordered by; None where it is not."""
    version: int | None = None
    """Its place in the lane, where the producer gave it one."""
    attempts = 0
    deaths = 0
    token: str | None = None
    unrecorded: BaseException | None = None
    """A failure that could not be written down, because the connection went with it."""
    waiter: Any = None
    whole: Message | None = None
    """The message with its payload, where only a reference to it is kept."""

    def __init__(
        self, message: Message, fingerprint: bytes, handler: Any = None, delivery: Any = None
    ) -> None:
        self.message = message
        self.fingerprint = fingerprint
        self.handler = handler
        self.delivery = delivery
        self.payload: bytes = message.payload
        """What is kept in the queue: the payload, or nothing where a store holds it."""


class Work:
    """One worker's constants, its adaptive batch limit, and its sources of chance and time."""

    def __init__(
        self,
        consumer: str,
        queries: Queries,
        policy: Policy,
        *,
        worker: str = "-",
        slot: int = 0,
        types: tuple[str, ...] | None = None,
        long_types: tuple[str, ...] = (),
        effect_types: tuple[str, ...] = (),
        handler: Callable[[str], Any] = lambda kind: None,
        outlets: Outlets | None = None,
        lapse_seconds: float = 10.0,
        spills: bool = False,
        window_seconds: float | None = None,
        jitter: random.Random | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        token: Callable[[], str] = new_token,
        alone: Alone | None = None,
    ) -> None:
        self.consumer = consumer
        self.queries = queries
        self.policy = policy
        self.worker = worker
        self.slot = slot
        self.types = list(types) if types is not None else None
        """Types this worker takes in batches; None is every type but the long ones."""
        self.long_types = list(long_types)
        self.effect_types = list(effect_types)
        """Types that are calls to the outside world."""
        self.outlets = outlets or Outlets()
        self.lapse_seconds = lapse_seconds
        """How long a heartbeat may be old before its worker counts as dead."""
        self.handler = handler
        """The handler of a type, or None."""
        self.jitter = jitter or random.Random()
        self.monotonic = monotonic
        self.token = token
        self.alone = alone or Alone()
        """What processes have died of runs one at a time."""
        self.limit = policy.batch
        """Halved when batches get into each other's way, grown by one when they don't."""
        self.crowded: Callable[[Work], None] = lambda work: None
        """Told each time it was halved."""
        self.wary = 0
        """For how many batches more a failure is expected."""
        self.reruns: dict[Any, int] = {}
        self.cancels: dict[tuple[str, str], int] = {}
        """How often a message's handler let a cancellation out that nobody had asked for."""
        self.unrecorded: dict[int, Exception] = {}
        """Failures of stored messages that could not be written down yet; recorded before they run again."""
        self.looked: float | None = None
        """When an inline worker last looked at its queue; None for who has none to look at."""
        self.idle = False
        """Nothing was due last time: look before opening a transaction."""
        self.spills = spills or (policy.mode == "inline" and policy.order_by is not None)
        """An inline message that is to be tried again goes to the queue, because the broker can't keep it
        back for a while, or must not hold up its lane."""
        self.window_seconds = window_seconds if policy.outside_window != "run" else None
        """What the ledger remembers; None where nobody is turned away for being older."""
        self.lazy = policy.durability == "group"
        self.keeps = policy.keep_payload == "always"
        """What is done is kept whole, for a replay."""
        self.marks_first = queries.pick is not None
        """SQLite has one writer: what is marked on another connection is marked before BEGIN."""

    def key(self, item: Item) -> dict[str, Any]:
        """The item's key as parameters."""
        return {"consumer": self.consumer, "source": item.message.source, "message_id": item.message.id}

    def call(self, query: Query | None, **params: Any) -> Call:
        """A call; a query the engine does not have is a mistake in the flow."""
        assert query is not None
        return Call(query, params)

    def keyed(self, query: Query, item: Item, **params: Any) -> Call:
        """A call with the item's key among its parameters."""
        return Call(query, {**self.key(item), **params})

    def short(self) -> dict[str, Any]:
        """Parameters that name what is taken in the effects' transaction."""
        return {
            "consumer": self.consumer,
            "types": self.types,
            "except": [*self.long_types, *self.effect_types],
        }

    def withdraw(self) -> Call:
        """Take back the marker of what this worker has in hand."""
        return self.call(self.queries.withdraw, worker=self.worker, slot=self.slot)

    def is_overdue(self) -> bool:
        """Whether an inline worker must look at its queue now: what failed, and what is behind it in its
        lane, waits there, and a broker that always has more must not keep it waiting for ever."""
        return self.looked is not None and self.monotonic() - self.looked >= OVERDUE_SECONDS

    def conflicted(self) -> None:
        """Batches got into each other's way: try half as many."""
        self.limit = max(1, self.limit // 2)
        self.crowded(self)

    def succeeded(self) -> None:
        """Grow back slowly."""
        self.limit = min(self.policy.batch, self.limit + 1)
