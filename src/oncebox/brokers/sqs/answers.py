"""What a source says to SQS: in batches, entry by entry, and again what SQS failed at for reasons of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from oncebox.brokers.contract import Delivery
from oncebox.brokers.sqs.client import Line
from oncebox.errors import BrokerError, BrokerUnavailable

log = logging.getLogger("oncebox")

BATCH_MAX = 10
"""Entries of one request, whichever."""
_TRIES = 3


class Tag(msgspec.Struct):
    """A delivery's receipt, and until when it is worth something."""

    receipt: str
    deadline: float
    last: float
    """When SQS delivers again, whatever is said."""
    raw: dict[str, Any] | None
    """As it came, where a copy may be wanted."""


class Answers:
    """Asks of one queue. Every error is `BrokerUnavailable`: to a source, a request that SQS refuses is a
    broker that can't be used now."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def delete(self, deliveries: Sequence[Delivery]) -> list[bool]:
        """Delete them; what was done, one by one."""
        entries = [{"ReceiptHandle": delivery.tag.receipt} for delivery in deliveries]
        return await self._batches("delete_message_batch", entries)

    async def change(self, wanted: Sequence[tuple[Delivery, int]]) -> list[bool]:
        """Keep each away for its seconds from now; what was done, one by one."""
        entries = [
            {"ReceiptHandle": delivery.tag.receipt, "VisibilityTimeout": seconds}
            for delivery, seconds in wanted
        ]
        return await self._batches("change_message_visibility_batch", entries)

    async def _batches(self, operation: str, entries: Sequence[dict[str, Any]]) -> list[bool]:
        batches = [entries[start : start + BATCH_MAX] for start in range(0, len(entries), BATCH_MAX)]
        replies = await asyncio.gather(*(self._batch(operation, batch) for batch in batches))
        return [done for reply in replies for done in reply]

    async def _batch(self, operation: str, entries: Sequence[dict[str, Any]]) -> list[bool]:
        left = {str(number): {"Id": str(number), **entry} for number, entry in enumerate(entries)}
        refused: set[str] = set()
        for turn in range(_TRIES):
            if turn:
                await asyncio.sleep(0.1 * turn)
            reply = await self.ask(operation, Entries=list(left.values()))
            failed = {str(each["Id"]): each for each in reply.get("Failed") or ()}
            # A receipt that is worth nothing any more: the message is delivered again, or is gone.
            refused |= {number for number, each in failed.items() if each.get("SenderFault")}
            left = {number: left[number] for number in failed if number not in refused and number in left}
            if not left:
                break
        if refused or left:
            text = "queue %s: %s: %d of %d were refused, %d failed; those messages come again"
            level = logging.WARNING if left else logging.INFO
            log.log(level, text, self._line.name, operation, len(refused), len(entries), len(left))
        return [str(number) not in refused and str(number) not in left for number in range(len(entries))]

    async def ask(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """One request."""
        try:
            return await self._line.call(operation, **parameters)
        except BrokerUnavailable:
            raise
        except BrokerError as error:
            raise BrokerUnavailable(str(error)) from error
