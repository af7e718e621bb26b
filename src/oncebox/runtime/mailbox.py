"""Where the feed leaves items for a worker: a line of its own and one that it shares, with a bell."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence

from oncebox.core.work import Item


class Mailbox:
    """Items for one worker. `take` never waits; the bell is rung for whoever waits for the first."""

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        """For this worker only."""
        self.shared: deque[Item] = deque()
        """For whichever worker of the consumer comes first: the same for all of them, where they share."""
        self.active: list[Item] = []
        """Taken and not settled: put back when the database is lost."""
        self.waiting = False
        """Nobody has rung since the worker found nothing."""
        self._shares = False
        """The shared line's turn, where both have something."""

    def put(self, item: Item) -> None:
        """Add an item and ring."""
        self.items.append(item)
        self.ring()

    def ring(self) -> None:
        """Wake the worker."""
        raise NotImplementedError

    def take(self, *, loose: bool = False) -> Item | None:
        """The next item, or None. `loose`: only one that has no place in an order.

        What it looks at is what it takes: others leave items here and take shared ones meanwhile.
        """
        own, shared = self.items, self.shared
        try:
            if shared and (self._shares or not own):
                item = shared.popleft()
                self._shares = False
            else:
                if loose and (own[0].lane is not None or own[0].place is not None):
                    return None
                item = own.popleft()
                self._shares = True
        except IndexError:
            return None
        self.active.append(item)
        return item

    def take_many(self, limit: int) -> list[Item]:
        """Up to `limit` items that are there."""
        taken: list[Item] = []
        while len(taken) < limit and (item := self.take()) is not None:
            taken.append(item)
        return taken

    def settled(self, items: Sequence[Item]) -> None:
        """These are dealt with."""
        if len(items) == len(self.active):  # all there are, as a rule
            self.active.clear()
            return
        for item in items:
            self.active.remove(item)

    def give_up(self) -> list[Item]:
        """Everything that was taken and not settled, no longer this worker's."""
        active, self.active = self.active, []
        return active

    def put_back(self) -> None:
        """Everything that was taken and not settled goes to the front again, in order."""
        active, self.active = self.active, []
        for item in active:
            item.outcome = None
            item.marked = False
        self.items.extendleft(reversed(active))


class ThreadMailbox(Mailbox):
    """For a worker in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._bell = threading.Event()

    def ring(self) -> None:
        self._bell.set()

    def wait(self, seconds: float) -> None:
        """Until the bell rings or the time is over."""
        self.waiting = True  # before the look: who leaves something after it rings
        if not self.items and not self.shared:
            self._bell.wait(seconds)
        self.waiting = False
        self._bell.clear()


class TaskMailbox(Mailbox):
    """For a worker that is a task of the loop; `put` is called on that loop."""

    def __init__(self) -> None:
        super().__init__()
        self._bell = asyncio.Event()

    def ring(self) -> None:
        self._bell.set()

    async def wait(self, seconds: float) -> None:
        """Until the bell rings or the time is over."""
        self.waiting = True
        if not self.items and not self.shared:
            try:
                async with asyncio.timeout(seconds):
                    await self._bell.wait()
            except TimeoutError:
                pass
        self.waiting = False
        self._bell.clear()
