"""The steps a flow can ask for. A flow is a generator: it yields a step and is sent the reply.

Steps are all that touches the world, so a fault, a barrier or a kill can be put before and after
each of them, by number, without the flow knowing.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from oncebox.core.archived import Archived
    from oncebox.core.queries import Query
    from oncebox.core.relay import Outgoing
    from oncebox.core.work import Item

T = TypeVar("T")
Op = Generator["Step", Any, T]
"""A flow in progress: yields steps, receives replies, returns T."""


class Step(msgspec.Struct, frozen=True, gc=False):
    """Base of all steps."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """A named query with its parameters; not a step by itself."""

    query: Query
    params: dict[str, Any]


class Begin(Step, frozen=True, gc=False):
    """Open a transaction that carries `token`, and send `calls` along in the same round trip.

    Reply: the number of rows the last call changed (0 without calls).
    `lazy` does not wait for the disk at commit. `lock_ms` bounds every lock wait in it.
    `carried`: its one call is a claim, which sets the token by itself.
    """

    token: str
    calls: tuple[Call, ...] = ()
    lazy: bool = False
    lock_ms: int = 0
    carried: bool = False


class Execute(Step, frozen=True, gc=False):
    """Perform calls in the open transaction in one round trip. Reply: rows changed by the last."""

    calls: tuple[Call, ...]


class Script(Step, frozen=True, gc=False):
    """Plain SQL text, several statements, in the open transaction: migrations. No reply."""

    text: str


class Fetch(Step, frozen=True, gc=False):
    """Read rows, in the open transaction or on its own. Reply: a list of tuples."""

    call: Call


class Save(Step, frozen=True, gc=False):
    """Set the savepoint that a failing batch goes back to; `again` replaces the earlier one."""

    again: bool = False


class Restore(Step, frozen=True, gc=False):
    """Undo everything since `Save`; locks taken before it stay."""


class Commit(Step, frozen=True, gc=False):
    """Perform `calls`, check that the transaction still carries `token`, commit; then open `then`.

    All in one round trip where the driver can. Reply: what `then` replies, else 0.
    Raises TransactionEnded, TransactionAborted or CommitUnknown instead of guessing.
    """

    token: str
    calls: tuple[Call, ...] = ()
    then: Begin | None = None


class Rollback(Step, frozen=True, gc=False):
    """End the transaction without a trace. Never raises for a connection that is gone already."""


class Side(Step, frozen=True, gc=False):
    """Perform one statement, committed by itself, on the process's second connection. Reply: rows."""

    call: Call


class Handle(Step, frozen=True, gc=False):
    """Run the user's handler for these items (one, or a list handler's many). Reply: its result(s)."""

    items: tuple[Item, ...]


class Ask(Step, frozen=True, gc=False):
    """Ask the effect's reconciling hook whether the call happened. Reply: its result, or None."""

    item: Item


class Publish(Step, frozen=True, gc=False):
    """Hand messages to their brokers and wait for the confirmations. Reply: None or an error for each."""

    outgoing: tuple[Outgoing, ...]


class Archive(Step, frozen=True, gc=False):
    """Write rows of one consumer and day to its archive, and read them back. Raises ArchiveError otherwise."""

    rows: tuple[Archived, ...]


class Keep(Step, frozen=True, gc=False):
    """Start or stop extending the item's lease in the background."""

    item: Item
    on: bool


class Next(Step, frozen=True, gc=False):
    """The next item if one is at hand. Reply: an Item or None; never waits."""


class Settle(Step, frozen=True, gc=False):
    """The items' outcomes are durable: tell whoever waits, and give the broker one answer for each."""

    items: Sequence[Item]


class Flush(Step, frozen=True, gc=False):
    """Make lazily committed work durable and count the ledger rows it vouches for. Reply: the count."""

    keys: tuple[tuple[str, str, str], ...]
