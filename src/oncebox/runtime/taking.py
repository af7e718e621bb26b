"""Messages that come from no source, a webhook's or a file's: handled or stored at once, as a worker or
receiver would, with the outcome left on each."""

from __future__ import annotations

from collections.abc import Iterable

from oncebox.core.outcomes import Outcome, Status
from oncebox.core.receiving import receive
from oncebox.core.steps import Op
from oncebox.core.work import Item, Work
from oncebox.runtime.mailbox import ThreadMailbox
from oncebox.runtime.workers import inline_turn

STORE_MAX = 1000
"""Most messages that are stored in one transaction."""
ROUNDS_MAX = 10


def line_of(items: Iterable[Item]) -> ThreadMailbox:
    """A line of what is to be taken, in order."""
    line = ThreadMailbox()
    line.items.extend(items)
    return line


def take_all(work: Work, line: ThreadMailbox) -> Op[None]:
    """Take what stands in line, in the way of the consumer's mode, until every item has an outcome."""
    if work.policy.mode == "inline":
        while (yield from inline_turn(work, line)):
            pass
        return
    while items := line.take_many(STORE_MAX):
        idle = 0
        while items and idle < ROUNDS_MAX:
            # One of each key at a time: what is there twice is stored first, and then a duplicate.
            left = yield from receive(work, items)
            idle = idle + 1 if len(left) == len(items) else 0
            items = left
        for item in items:
            # Its row comes and goes under our hands: whoever sent it may try again.
            item.outcome = Outcome(Status.IN_FLIGHT, delay_seconds=1.0)
        line.settled(items)
