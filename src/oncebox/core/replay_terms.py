"""What a replay is asked for, what policy says to it, and how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from oncebox import errors
from oncebox.core.audit import Act
from oncebox.core.replaying import Placed
from oncebox.core.work import Work
from oncebox.message import Message

VERB = "replay"


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages are meant. What is None does not matter."""

    ids: tuple[str, ...] = ()
    source: str | None = None
    type: str | None = None
    key: str | None = None
    since: float | None = None
    """When it was first received, from here on: seconds since 1970."""
    until: float | None = None

    def words(self) -> dict[str, Any]:
        """As the queries and the audit want it."""
        return {**msgspec.structs.asdict(self), "ids": list(self.ids) or None}

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Chosen()

    def admits(self, message: Message, lane: str | None = None) -> bool:
        """Whether a message is meant, by all but its time; `lane` is the key that its consumer orders by."""
        return (
            (not self.ids or message.id in self.ids)
            and self.source in (None, message.source)
            and self.type in (None, message.type)
            and self.key in (None, message.key, lane)
        )


class Run(msgspec.Struct, kw_only=True):
    """One replay, and how far it is."""

    id: str
    consumer: str
    policy: str
    origin: str
    filter: str = "{}"
    bound: int = 0
    first: int = 0
    """Where this process began."""
    place: int = 0
    mark: str = ""
    handled: int = 0
    """Messages whose handlers ran, and committed."""
    skipped: int = 0
    """Discarded by their handler; of a file, what waits, is dead, or was finished since the run began."""
    failed: int = 0
    suppressed: int = 0
    """Publications, sends and calls to the outside that were left out."""
    resumed: bool = False
    ended: str = ""
    """`done`, or `stopped` where it can go on."""


class Order(msgspec.Struct, kw_only=True):
    """What a replay is asked for."""

    act: Act
    """Who and why; its id is the run's."""
    origin: str = "ledger"
    chosen: Chosen = Chosen()
    ago: tuple[str, ...] = ()
    """Which of `since` and `until` were said as so long ago: a run goes on with what they were at its beginning."""
    given: Iterator[Placed] | None = None
    """Messages of a file, in order; None: those of the ledger."""
    archived: Iterator[Placed] | None = None
    """Messages of an archive, by the place they had in `kept`: replayed with those that are still there."""
    batch: int = 1
    skip_failures: bool = False
    restart: bool = False
    """Give up the run that is open, and begin anew."""
    reset: Any = None
    """A handler that empties what is rebuilt, run where the run begins."""
    stopped: bool = False
    """Somebody vouches for it that no worker of this consumer is at work."""


def check(work: Work, order: Order) -> None:
    """Whether policy lets this happen; UsageError says which word to set."""
    policy, named = work.policy, f"consumer {work.consumer!r}"
    if policy.replay == "forbid":
        raise errors.UsageError(
            f'{named} has replay="forbid": set replay="rebuild" to run its handlers again with all they write and '
            'send, or replay="suppress_effects" to leave out what they send and call'
        )
    calls = [kind for kind in work.effect_types if order.chosen.type in (None, kind)]
    if policy.replay == "rebuild" and calls:
        raise errors.UsageError(
            f'{named} calls the outside world ({", ".join(sorted(calls))}), and replay="rebuild" would do so again; '
            'set replay="suppress_effects", or choose another type with --type'
        )
    if order.given is not None and policy.keep_payload != "always" and not order.stopped:
        raise errors.UsageError(
            f'{named}: beside live traffic, a replay of a file needs keep_payload="always", which tells what is '
            "finished meanwhile; or stop this consumer's workers, and say so with --stopped"
        )
    if order.reset is not None and not order.chosen.is_everything:
        raise errors.UsageError(
            f"{named}: its reset empties everything, and a part would be replayed; leave out the filters, or the reset "
            "with --no-reset"
        )


def nothing_kept(work: Work) -> str:
    """Why there is nothing to replay, and what to do about it."""
    named = f"consumer {work.consumer!r}: no payload is kept of what it has handled"
    if work.policy.keep_payload == "always":
        return f'{named}; nothing was handled since keep_payload is "always", or retention has taken it'
    return (
        f'{named}; set keep_payload="always" to keep them from now on, or replay a file with --file '
        "(what is gone from here, its producer or an archive may have)"
    )
