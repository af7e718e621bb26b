"""Between a source and its workers: receive, hand out, and give every delivery its one answer."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from oncebox.brokers.contract import Delivery, Source
from oncebox.codec import safe_text
from oncebox.core.effects import TWICE
from oncebox.core.outcomes import DONE, KEPT, Answer, Outcome, Status
from oncebox.core.work import Item
from oncebox.errors import BrokerUnavailable
from oncebox.message import Message
from oncebox.runtime.intake import Intake
from oncebox.runtime.mailbox import Mailbox
from oncebox.runtime.performer import CLAIM_CHECK
from oncebox.runtime.tallies import Tallies
from oncebox.runtime.workers import pause_seconds

log = logging.getLogger("oncebox")

ANSWER_SECONDS = 0.01
"""How long an outcome may wait for others, so that they are answered together; after a crash in between, the
ledger knows the message."""
EXTEND_EVERY_SECONDS = 5.0
EXTEND_BY_SECONDS = 30.0
LOOK_SECONDS = 0.05
"""How often a feed looks at how fast deliveries are handled."""
FAST_SECONDS = 0.025
FAST_TIMES = 4
"""Where all that may be out is handled within so many seconds, so many times as much may be: to receive and answer
twenty at once takes hardly more than to do it with five, and each is still here for a moment only. Batches are enough
as they are: more at once would only keep their workers waiting."""


class Feed:
    """One consumer's source. Bounded: at most `most` deliveries are out at any time, which is more where they are
    handled fast."""

    def __init__(
        self,
        source: Source,
        intake: Intake,
        most: int,
        workers: int = 1,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        # Not every broker has a place for dead messages; to the others they are acked.
        self._bury: Callable[[Delivery, str], Awaitable[None]] | None = getattr(source, "bury", None)
        self._copy_dead: Callable[[Message, str], Awaitable[None]] | None = getattr(source, "copy_dead", None)
        self.intake = intake
        self.most = self._least = most
        grows = intake.policy.batch == 1 and not getattr(source, "pushes", False)
        self._times = FAST_TIMES if grows else 1
        self.outstanding: dict[int, Delivery] = {}
        self._settled: deque[Item] = deque()
        self._bell = asyncio.Event()
        self._room = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._enough = max(1, most // 4)
        self._workers = workers
        self._monotonic = monotonic
        self._answered = 0
        self._looked = monotonic()
        self._emptied: float | None = self._looked
        self._waiting = False
        self._rung = False
        self._releasing: set[asyncio.Task[None]] = set()
        self._answering = asyncio.Lock()
        self._paused: set[int] = set()
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self.stopping = False
        self.is_open = True
        """False where the broker could not be reached at start: opened when it can."""
        self.opened: Callable[[], None] = lambda: None

    def settle(self, items: Sequence[Item]) -> None:
        """From any thread: these items' outcomes are durable. Answered soon; at once when many are, or when so few are
        left that a worker has nothing to do: the broker may be waiting for the answer with its next."""
        self._settled.extend(items)
        if self._rung:
            return
        settled = len(self._settled)
        if settled >= self._enough or len(self.outstanding) - settled < self._workers:
            self._rung = True
            self._call(self._bell.set)
        elif not self._waiting:
            self._waiting = True
            self._call(self._ring_soon)

    def _call(self, act: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            act()
        else:
            self._loop.call_soon_threadsafe(act)

    def _ring_soon(self) -> None:
        self._loop.call_later(ANSWER_SECONDS, self._bell.set)

    def lost(self, worker: int, lost: bool) -> None:
        """From any thread: a worker lost the database, or has it again. While one has lost it, nothing
        more is received: what would be fetched could not be handled."""
        self._loop.call_soon_threadsafe(self._pause, worker, lost)

    def _pause(self, worker: int, lost: bool) -> None:
        (self._paused.add if lost else self._paused.discard)(worker)
        (self._unpaused.clear if self._paused else self._unpaused.set)()

    async def receive(self, hand_out: Callable[[list[Item]], None]) -> None:
        """Receive until cancelled, leaving items with the workers."""
        lost = 0
        while True:
            await self._unpaused.wait()
            room = self.most - len(self.outstanding)
            if room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            try:
                if not self.is_open:
                    await self.source.open()
                    self.is_open = True
                    self.opened()
                deliveries = await self.source.receive(room)
            except Exception as error:
                lost += 1
                if lost in (1, 5) or lost % 30 == 0:
                    unforeseen = None if isinstance(error, BrokerUnavailable) else error
                    text = "source %s: %s; trying again (%d)"
                    log.warning(text, self.source.name, error, lost, exc_info=unforeseen)
                await asyncio.sleep(pause_seconds(lost))
                continue
            if self._emptied is not None:
                self._looked += self._monotonic() - self._emptied  # nobody is slow while there is nothing
                self._emptied = None
            self.outstanding.update(zip(map(id, deliveries), deliveries, strict=True))
            try:
                hand_out(list(map(self.intake.from_delivery, deliveries)))
            except Exception as error:
                # A payload store that is full or gone: nothing is lost, the broker keeps them.
                lost += 1
                log.error("source %s: can't take deliveries in: %s", self.source.name, error)
                for delivery in deliveries:
                    self.outstanding.pop(id(delivery), None)
                await self._release(deliveries)
                await asyncio.sleep(pause_seconds(lost))
            else:
                lost = 0

    async def answer(self, tallies: Tallies) -> None:
        """Give the broker its answers as outcomes come in, together where they come close together."""
        while True:
            await self._bell.wait()
            self._bell.clear()
            self._rung = self._waiting = False
            await self.answer_settled(tallies)

    async def answer_settled(self, tallies: Tallies) -> None:
        """Answer everything that is settled now; what another call is answering is answered when this returns."""
        async with self._answering:
            await self._answer_settled(tallies)

    async def _answer_settled(self, tallies: Tallies) -> None:
        acks: list[Delivery] = []
        dead: list[tuple[Delivery, str]] = []
        nacks: list[tuple[Delivery, float]] = []
        buried: list[Item] = []
        done: list[Message] = []
        kept: list[Message] = []
        while self._settled:
            item = self._settled.popleft()
            outcome = item.outcome
            assert outcome is not None
            if item.delivery is not None and (
                outcome is KEPT or (outcome.status is Status.PROCESSED and not outcome.reason)
            ):
                # What nearly all are: counted together, acked, and nothing to report.
                (kept if outcome is KEPT else done).append(item.message)
                acks.append(item.delivery)
                continue
            tallies.add(self.intake.consumer, item.message, outcome)
            report(self.intake.consumer, item, outcome)
            if item.delivery is None:
                if outcome.status is Status.DEAD and self._copy_dead is not None:
                    buried.append(item)
                continue
            if outcome.status is Status.DEAD and self._bury is not None:
                dead.append((item.delivery, str(outcome.reason)))
            elif outcome.answer is Answer.ACK:
                acks.append(item.delivery)
            elif outcome.answer is Answer.NACK:
                nacks.append((item.delivery, outcome.delay_seconds))
        if done:
            tallies.add_all(self.intake.consumer, done, DONE)
        if kept:
            tallies.add_all(self.intake.consumer, kept, KEPT)
        try:
            if acks:
                await self.source.ack(acks)
            for delivery, reason in dead:
                assert self._bury is not None
                await self._bury(delivery, reason)
            for delivery, delay in nacks:
                await self.source.nack(delivery, delay)
            for item in buried:
                await self._copied(item)
        except Exception as error:
            # The broker delivers them again, and the ledger absorbs it.
            log.warning(
                "source %s: %d answers were lost: %s",
                self.source.name,
                len(acks) + len(dead) + len(nacks),
                error,
                exc_info=None if isinstance(error, BrokerUnavailable) else error,
            )
        # Cancelled, they are still out: `give_back` releases them.
        for delivery in acks:
            self.outstanding.pop(id(delivery), None)
        for delivery, _ in (*dead, *nacks):
            self.outstanding.pop(id(delivery), None)
        self._answered += len(acks)
        self._look()
        self._room.set()

    def _look(self) -> None:
        """Let more be out where they are handled fast, and no more than at first where they aren't."""
        if self._emptied is not None:
            return  # nothing was out: what was answered came from the queue
        now = self._monotonic()
        if not self.outstanding:
            self._emptied = now
        seconds = now - self._looked
        if seconds < LOOK_SECONDS:
            return
        is_fast = self._answered * FAST_SECONDS >= self._least * seconds
        self.most = self._least * (self._times if is_fast else 1)
        self._enough = max(1, self.most // 4)
        self._answered, self._looked = 0, now

    @property
    def copies(self) -> bool:
        """Whether what dies in the queue has a place at the broker, too."""
        return self._copy_dead is not None

    async def _copied(self, item: Item) -> None:
        """What was acked long ago has died in the queue: the broker's place for the dead gets a copy, too."""
        message, outcome, store = item.message, item.outcome, self.intake.store
        assert self._copy_dead is not None
        assert outcome is not None
        reference = message.header(CLAIM_CHECK) if message.headers and store is not None else None
        if reference is not None and store is not None:
            payload = await self._loop.run_in_executor(None, store.get, reference.decode())
            headers = tuple(pair for pair in message.headers if pair[0] != CLAIM_CHECK)
            message = msgspec.structs.replace(message, payload=payload, headers=headers)
        await self._copy_dead(message, str(outcome.reason))

    async def extend(self) -> None:
        """Keep what is being worked on from being delivered again."""
        while True:
            await asyncio.sleep(EXTEND_EVERY_SECONDS)
            if self.outstanding:
                try:
                    await self.source.extend(list(self.outstanding.values()), EXTEND_BY_SECONDS)
                except Exception as error:
                    log.debug("source %s: not extended: %s", self.source.name, error)

    def release(self, items: list[Item]) -> None:
        """On the loop: give these back to the broker at once, neither acked nor nacked."""
        deliveries = [self.outstanding.pop(id(item.delivery), item.delivery) for item in items]
        task = self._loop.create_task(self._release(deliveries))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release(self, deliveries: list[Delivery]) -> None:
        try:
            await self.source.release(deliveries)
        except Exception as error:
            log.warning("source %s: %d were not given back: %s", self.source.name, len(deliveries), error)
        self._room.set()

    async def give_back(self) -> None:
        """Release what was not answered: neither acked nor nacked."""
        await asyncio.gather(*self._releasing)
        left = list(self.outstanding.values())
        self.outstanding.clear()
        if left:
            await self._release(left)


def hand_out(mailboxes: Sequence[Mailbox], items: list[Item], *, shared: deque[Item] | None = None) -> None:
    """Messages of one key go to one worker, so that they don't meet on the same rows. The rest is for who comes first,
    where workers share a line, so that none waits for another one's handler; batches go where the line is shortest."""
    if len(mailboxes) == 1:
        mailboxes[0].items.extend(items)
        if items:
            mailboxes[0].ring()
        return
    lines = [len(mailbox.items) + len(mailbox.active) for mailbox in mailboxes]
    left = 0
    for item in items:
        key = item.lane or item.message.key
        if item.place is not None:
            key = f"{item.place.topic}:{item.place.partition}"  # one after the other, in one worker
        if key is None and shared is not None:
            shared.append(item)
            left += 1
            continue
        place = lines.index(min(lines)) if key is None else zlib.crc32(key.encode()) % len(lines)
        lines[place] += 1
        mailboxes[place].items.append(item)
    for mailbox in mailboxes:
        if mailbox.items:
            mailbox.ring()
        elif left and mailbox.waiting:
            # One worker for each; whoever is busy looks for more by itself.
            mailbox.waiting = False
            mailbox.ring()
            left -= 1


def report(consumer: str, item: Item, outcome: Outcome) -> None:
    """One log line per failure, with ids and never a payload."""
    if outcome.status is Status.PROCESSED and not outcome.reason:
        return
    message = item.message
    ids = {
        "consumer": consumer,
        "message_id": message.id,
        "message_source": message.source,
        "message_type": message.type,
    }
    if outcome.status is Status.DEAD and outcome.error is not None:
        log.error(
            "consumer %s: message %s is dead: %s%s",
            consumer,
            item.message.id,
            outcome.reason or "known",
            f" ({safe_text(outcome.error)})",
            extra=ids,
        )
    elif outcome.reason == TWICE:
        log.error(
            "consumer %s: message %s: a call came back after another one was recorded; the provider was "
            "called twice with one idempotency key",
            consumer,
            item.message.id,
            extra=ids,
        )
    elif outcome.status is Status.RETRY:
        log.warning(
            "consumer %s: message %s failed (%s), again in %.1f s",
            consumer,
            item.message.id,
            safe_text(outcome.error) if outcome.error is not None else "no error",
            outcome.delay_seconds,
            extra=ids,
        )
