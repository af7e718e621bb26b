"""The dead-letter queue that a source is given: dead messages go there too, as they came, with the reason."""

from __future__ import annotations

from typing import Any

from oncebox.brokers.sqs import wire
from oncebox.brokers.sqs.client import Line


class DeadLetters:
    """Sends copies of dead messages to a queue of their own."""

    def __init__(self, line: Line) -> None:
        self.name = line.name
        self._line = line

    async def open(self) -> None:
        """Find the queue; see `Line.open` for the errors."""
        await self._line.open()

    async def close(self) -> None:
        """Hang up."""
        await self._line.close()

    async def send(self, raw: dict[str, Any], reason: str) -> None:
        """Return when SQS has the copy. `BrokerError` when it has not."""
        await self._line.call("send_message", **wire.as_it_came(raw, reason, fifo=self._line.fifo))
