"""Stored mode's front door."""

from __future__ import annotations

import asyncio

from oncebox.core.receiving import receive
from oncebox.core.run import run_async
from oncebox.core.steps import Settle
from oncebox.core.work import Work
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session
from oncebox.runtime.feed import Feed
from oncebox.runtime.mailbox import TaskMailbox
from oncebox.runtime.members import Member, connection_settings
from oncebox.runtime.performer import Performer
from oncebox.runtime.sessions import AsyncSideChannel, finished
from oncebox.runtime.workers import TaskWorker, ThreadWorker, pause_seconds, report_loss

STORE_MAX = 300
"""Most that are stored at once: the first of them are worked on while the others are still being stored."""
AGAIN_SECONDS = 0.02
"""When to look again, where nothing of what was received could be written down."""


class Receiver:
    """Stored mode's front door: writes deliveries down, then has them acked."""

    def __init__(
        self,
        member: Member,
        work: Work,
        database: Database,
        side: AsyncSideChannel,
        feed: Feed,
        workers: list[ThreadWorker | TaskWorker],
    ) -> None:
        self.member = member
        self.work = work
        self.database = database
        self.side = side
        self.feed = feed
        self.workers = workers
        self.mailbox = TaskMailbox()

    async def run(self) -> None:
        """Store what arrives, as much at once as is there, until cancelled."""
        session: Session | None = None
        performer: Performer | None = None
        lost = 0
        work = self.work
        self.mailbox.put_back()  # what an earlier run had in hand, if it was ended in the middle
        try:
            while True:
                await self.mailbox.wait(60)
                try:
                    if session is None or performer is None:
                        session = await self.database.connect_async(connection_settings(self.member.policy))
                        performer = Performer(work, session, self.side, is_async=True)
                        performer.hands[Settle] = self._settle
                        self.feed.lost(0, False)
                        lost = 0
                    while items := self.mailbox.take_many(STORE_MAX):
                        left = await run_async(receive(work, items), performer)
                        self.mailbox.settled(left)
                        # Before what came after them: whatever is stored first is first in its lane.
                        self.mailbox.items.extendleft(reversed(left))
                        if len(left) == len(items):
                            await asyncio.sleep(AGAIN_SECONDS)  # somebody decides about their rows right now
                        for worker in self.workers:
                            worker.mailbox.ring()
                except Exception as error:
                    self.mailbox.put_back()
                    self.mailbox.ring()
                    lost += 1
                    self.feed.lost(0, True)
                    report_loss(work, lost, error)
                    if session is not None:
                        await finished(session.close())
                        session = None
                    await asyncio.sleep(pause_seconds(lost))
        finally:
            if session is not None:
                await finished(session.close())

    def _settle(self, step: Settle) -> None:
        self.mailbox.settled(step.items)
        self.feed.settle(step.items)
