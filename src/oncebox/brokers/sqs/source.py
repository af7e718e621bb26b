"""Receiving from one queue: polls that lose nothing when cancelled, answers that come in time or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Sequence
from typing import Any

from oncebox.brokers.contract import Delivery, SourceFacts
from oncebox.brokers.sqs import wire
from oncebox.brokers.sqs.answers import BATCH_MAX, Answers, Tag
from oncebox.brokers.sqs.client import Facts, Line
from oncebox.brokers.sqs.deadletter import DeadLetters
from oncebox.clock import Clock
from oncebox.errors import BrokerError, BrokerUnavailable
from oncebox.identity import Envelope, Identity

log = logging.getLogger("oncebox")

VISIBILITY_SECONDS_MAX = 12 * 3600
"""The longest that a delivery can be kept from others, extensions included."""
_MARGIN_SECONDS = 60
"""SQS counts from when it handed the message out, we from when it came; beyond the limit it refuses."""
_AGAIN_SECONDS = 5
_CLOSE_SECONDS = 5
"""How long a source that closes waits for SQS to hear it; what it does not hear comes again anyway."""
_SYSTEM = (
    "ApproximateReceiveCount", "MessageDeduplicationId", "MessageGroupId", "SentTimestamp", "SequenceNumber",
)  # fmt: skip


def by_message_id(envelope: Envelope) -> str | None:
    """The id that SNS, else SQS, gave the message when it took it. To be named: `Identity(id=by_message_id)`.

    It is the same for every delivery of one sending. A producer that sends twice has two ids, and is not
    found out.
    """
    where = envelope.provenance
    found = where.get("sns_message_id") or where.get("message_id")
    return found if isinstance(found, str) else None


class SqsSource:
    """One subscription to a queue of SQS; made by `Sqs.queue`, used from one event loop."""

    in_process = False
    counts_deliveries = True

    def __init__(
        self,
        line: Line,
        *,
        identity: Identity,
        visibility_seconds: int,
        wait_seconds: int,
        attempts: int,
        unwrap_sns: bool,
        clock: Clock,
        dead_letters: DeadLetters | None,
    ) -> None:
        self.name = line.name
        self.identity = identity
        self.pins_keys = line.fifo
        self.redelivery_horizon_seconds: float | None = None
        """How long the queue keeps a message; known once open."""
        self._line = line
        self._answers = Answers(line)
        self._visibility_seconds = visibility_seconds
        self._wait_seconds = wait_seconds
        self._attempts = attempts
        self._unwrap_sns = unwrap_sns
        self._clock = clock
        self._dead_letters = dead_letters
        self._open = False
        self._held: dict[str, Delivery] = {}
        self._backlog: list[Delivery] = []
        self._poll: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._waiting = 0
        self._bell = asyncio.Event()
        self._chores: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Find the queue and read its attributes; see `Line.open` for the errors.

        Warns of a redrive policy that takes messages away before the consumer has given them up.
        """
        facts = await self._line.open()
        if self._dead_letters is not None:
            try:
                await self._dead_letters.open()
            except BaseException:
                await self._line.close()
                raise
        self.redelivery_horizon_seconds = facts.retention_seconds
        self._remark(facts)
        self._open = True

    async def look(self) -> SourceFacts:
        """See `SourceFacts`."""
        facts = await self._line.look()
        self.redelivery_horizon_seconds = facts.retention_seconds
        return SourceFacts(
            deliveries_max=facts.receives_max,
            dead_letter=facts.dead_letter,
            visibility_seconds=self._visibility_seconds,
            answer_seconds_max=VISIBILITY_SECONDS_MAX,
        )

    def _remark(self, facts: Facts) -> None:
        if facts.receives_max is None:
            log.warning(
                "queue %s has no redrive policy: what no consumer takes in comes again until SQS drops it, after %g s",
                self.name,
                facts.retention_seconds,
            )
        elif facts.receives_max <= self._attempts:
            log.warning(
                "queue %s: SQS moves a message to %s after %d deliveries, but a consumer may make %d attempts, and "
                "releases and restarts count as well; raise maxReceiveCount well above that",
                self.name,
                facts.dead_letter,
                facts.receives_max,
                self._attempts,
            )
        if not self._line.fifo and self.identity.id is None:
            log.info(
                "queue %s: SQS carries no producer's id here; messages without the attribute message-id and without "
                "CloudEvents attributes need identity=Identity(id=…)",
                self.name,
            )

    async def close(self) -> None:
        """Give back what was not answered and disconnect. Waits for a poll under way, which may hold some."""
        self._open = False
        self._bell.set()
        heard = True
        if (poll := self._poll) is not None:
            await asyncio.wait({poll}, timeout=self._wait_seconds + _CLOSE_SECONDS)
            heard = poll.done()
            poll.cancel()
        if self._chores:
            await asyncio.wait(self._chores, timeout=_CLOSE_SECONDS)
        left = [*self._held.values(), *self._backlog]
        self._held.clear()
        self._backlog.clear()
        if heard and self._line.facts is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._give_back(left)
        await self._line.close()
        if self._dead_letters is not None:
            await self._dead_letters.close()

    async def receive(self, limit: int) -> list[Delivery]:
        """See `Source.receive`; ten at most at once, as SQS has it."""
        self._waiting += 1
        try:
            while True:
                if not self._open:
                    raise BrokerUnavailable(f"the source of queue {self.name!r} is not open")
                if taken := self._taken(limit):
                    return taken
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                self._bell.clear()
                if self._poll is None:
                    # A task of its own: SQS hands messages to a request that was given up, too, and they
                    # would be gone for their whole visibility.
                    self._poll = asyncio.create_task(self._fetch(max(1, min(limit, BATCH_MAX))))
                await self._bell.wait()
        except asyncio.CancelledError:
            if self._waiting == 1:
                self._leave_backlog()
            raise
        finally:
            self._waiting -= 1

    def _taken(self, limit: int) -> list[Delivery]:
        now = self._clock.monotonic()
        if len(self._held) > 1_000:
            self._held = {receipt: each for receipt, each in self._held.items() if each.tag.deadline > now}
        fresh = [delivery for delivery in self._backlog if delivery.tag.deadline > now]
        taken, self._backlog = fresh[:limit], fresh[limit:]
        self._held |= {delivery.tag.receipt: delivery for delivery in taken}
        return taken

    async def _fetch(self, count: int) -> None:
        """One poll. What it brings is for whoever waits then, and goes back when nobody does."""
        try:
            reply = await self._answers.ask(
                "receive_message",
                MaxNumberOfMessages=count,
                WaitTimeSeconds=self._wait_seconds,
                VisibilityTimeout=self._visibility_seconds,
                MessageAttributeNames=["All"],
                # The first is the name of today, the second what older emulators know.
                MessageSystemAttributeNames=list(_SYSTEM),
                AttributeNames=list(_SYSTEM),
            )
            self._backlog += [self._delivery(raw) for raw in reply.get("Messages") or ()]
            self._failure = None
        except Exception as error:  # for whoever waits; a task's own would be lost
            self._failure = error
        finally:
            self._poll = None
            self._bell.set()
        if not self._waiting:
            self._failure = None
            self._leave_backlog()

    def _delivery(self, raw: dict[str, Any]) -> Delivery:
        now = self._clock.monotonic()
        found = wire.delivery(raw, self.name, unwrap_sns=self._unwrap_sns)
        last = now + VISIBILITY_SECONDS_MAX - _MARGIN_SECONDS
        kept = raw if self._dead_letters is not None else None
        found.tag = Tag(raw["ReceiptHandle"], now + self._visibility_seconds, last, kept)
        return found

    def _leave_backlog(self) -> None:
        left, self._backlog = self._backlog, []
        if left:
            chore = asyncio.create_task(self._give_back(left))
            self._chores.add(chore)
            chore.add_done_callback(self._chores.discard)

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        try:
            await self._answers.change([(delivery, 0) for delivery in deliveries if self._is_live(delivery)])
        except BrokerUnavailable as error:
            log.info(
                "queue %s: %d were not given back, and come later: %s", self.name, len(deliveries), error
            )

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.ack`: deletes in batches, and again what SQS could not delete for reasons of its own."""
        mine = self._answered(deliveries)
        await self._answers.delete(mine)

    async def bury(self, delivery: Delivery, reason: str) -> None:
        """Dead: as `ack`, once the dead-letter queue has a copy, where one is named. Without it, once more."""
        if self._dead_letters is not None and delivery.tag.receipt in self._held:
            try:
                await self._dead_letters.send(delivery.tag.raw, reason)
            except BrokerError as error:
                # It is dead in the database already, which the next delivery finds; only this copy is missing.
                text = "queue %s: no copy of a dead message in %s, trying again: %s"
                log.warning(text, self.name, self._dead_letters.name, error)
                await self.nack(delivery, _AGAIN_SECONDS)
                return
        await self.ack([delivery])

    async def nack(self, delivery: Delivery, delay_seconds: float) -> None:
        """See `Source.nack`. The delay is whole seconds, rounded up, and 12 hours at most."""
        if self._answered([delivery]):
            await self._answers.change([(delivery, self._whole(delivery, delay_seconds))])

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """See `Source.release`. SQS counts the delivery all the same."""
        await self._answers.change([(delivery, 0) for delivery in self._answered(deliveries)])

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """See `Source.extend`; never shortens, and never beyond 12 hours after the delivery."""
        until = self._clock.monotonic() + seconds
        mine = [each for each in deliveries if each.tag.receipt in self._held]
        wanted = [
            (each, self._whole(each, seconds))
            for each in (*mine, *self._backlog)
            if self._is_live(each) and each.tag.deadline < min(until, each.tag.last)
        ]
        changed = await self._answers.change(wanted)
        for (delivery, whole), done in zip(wanted, changed, strict=True):
            if done:
                delivery.tag.deadline = until - seconds + whole

    def _whole(self, delivery: Delivery, seconds: float) -> int:
        left: int = math.floor(delivery.tag.last - self._clock.monotonic())
        return max(0, min(math.ceil(seconds), left))

    def _is_live(self, delivery: Delivery) -> bool:
        # SQS may take a late answer at its word, though the message is someone else's by then.
        return bool(delivery.tag.deadline > self._clock.monotonic())

    def _answered(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Those that are still ours to answer; from now on they are not."""
        mine = [each for each in deliveries if self._held.pop(each.tag.receipt, None) is not None]
        return [each for each in mine if self._is_live(each)]
