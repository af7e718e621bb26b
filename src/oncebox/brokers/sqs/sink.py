"""Publishing to one queue: batches, and an answer for each message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from oncebox.brokers.destination import topic_of
from oncebox.brokers.sqs import wire
from oncebox.brokers.sqs.client import Line
from oncebox.errors import BrokerError, BrokerUnavailable, MessageError
from oncebox.message import Message

BATCH_MAX = 10
_REQUESTS_MAX = 8
"""Requests under way at once."""


class _Entry(msgspec.Struct):
    """One message on its way."""

    number: int
    parameters: dict[str, Any]
    size: int

    @property
    def group(self) -> str | None:
        """Messages of one group keep their order; None for a message of a standard queue."""
        group: str | None = self.parameters.get("MessageGroupId")
        return group


class SqsSink:
    """A sink that sends every message to one queue; made by `Sqs.sink`, used from one event loop."""

    def __init__(self, line: Line) -> None:
        self.name = line.name
        self._line = line

    async def open(self) -> None:
        """Find the queue; see `Line.open` for the errors."""
        await self._line.open()

    async def close(self) -> None:
        """Disconnect."""
        await self._line.close()

    async def publish(self, messages: Sequence[Message]) -> list[BaseException | None]:
        """See `Sink.publish`. `TooLarge` for what is over the queue's limit.

        In a FIFO queue, the messages of a key are sent one after the other; once one was not taken, the
        later ones of its key in this call are not sent.
        """
        facts = self._line.facts
        if facts is None:
            return [BrokerUnavailable(f"the sink of queue {self.name!r} is not open")] * len(messages)
        answers: list[BaseException | None] = [None] * len(messages)
        left: list[_Entry] = []
        for number, message in enumerate(messages):
            try:
                if topic := topic_of(message):
                    raise MessageError(
                        f"message {message.id}: topic={topic!r}, but this sink sends to queue {self.name!r} alone; "
                        "leave the topic out, or route types to sinks"
                    )
                left.append(
                    _Entry(number, *wire.entry(message, fifo=self._line.fifo, bytes_max=facts.bytes_max))
                )
            except MessageError as error:
                answers[number] = error
        failed: set[str] = set()
        while left:
            wave, left = _heads(left)
            for entry, answer in await self._send_all(wave, max(facts.bytes_max, wire.BYTES_MAX_BEFORE)):
                answers[entry.number] = answer
                if answer is not None and entry.group is not None:
                    failed.add(entry.group)
            for entry in left:
                if entry.group in failed:
                    answers[entry.number] = BrokerUnavailable(
                        f"queue {self.name!r}: an earlier message of this key was not taken, and goes first"
                    )
            left = [entry for entry in left if entry.group not in failed]
        return answers

    async def _send_all(
        self, entries: Sequence[_Entry], bytes_max: int
    ) -> list[tuple[_Entry, BaseException | None]]:
        turns = asyncio.Semaphore(_REQUESTS_MAX)

        async def send(batch: list[_Entry]) -> list[tuple[_Entry, BaseException | None]]:
            async with turns:
                return list(zip(batch, await self._send(batch), strict=True))

        replies = await asyncio.gather(*(send(batch) for batch in _batches(entries, bytes_max)))
        return [reply for batch in replies for reply in batch]

    async def _send(self, batch: Sequence[_Entry]) -> list[BaseException | None]:
        """What became of each, in order."""
        entries = [{"Id": str(place), **entry.parameters} for place, entry in enumerate(batch)]
        try:
            reply = await self._line.call("send_message_batch", Entries=entries)
        except BrokerUnavailable as error:
            return [error] * len(batch)
        except BrokerError as error:
            if len(batch) == 1:
                return [error]
            # One that SQS refuses must not take its neighbours with it.
            return [answer for entry in batch for answer in await self._send([entry])]
        failed = {str(each["Id"]): each for each in reply.get("Failed") or ()}
        taken = {str(each["Id"]) for each in reply.get("Successful") or ()}
        return [
            None if place in taken else self._refusal(failed.get(place))
            for place in map(str, range(len(batch)))
        ]

    def _refusal(self, failure: dict[str, Any] | None) -> BrokerError:
        if failure is None:
            return BrokerError(f"queue {self.name!r}: SQS did not answer for this message")
        text = f"queue {self.name!r}: SQS says {failure.get('Code')}: {str(failure.get('Message', ''))[:200]}"
        return BrokerError(text) if failure.get("SenderFault") else BrokerUnavailable(text)


def _heads(entries: Sequence[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
    """The first of every group and everything without one; then the rest, in order."""
    seen: set[str] = set()
    now: list[_Entry] = []
    later: list[_Entry] = []
    for entry in entries:
        (later if entry.group in seen else now).append(entry)
        if entry.group is not None:
            seen.add(entry.group)
    return now, later


def _batches(entries: Sequence[_Entry], bytes_max: int) -> list[list[_Entry]]:
    """Ten at most, and no more bytes than SQS takes at once."""
    batches: list[list[_Entry]] = []
    size = 0
    for entry in entries:
        if not batches or len(batches[-1]) == BATCH_MAX or size + entry.size > bytes_max:
            batches.append([])
            size = 0
        batches[-1].append(entry)
        size += entry.size
    return batches
