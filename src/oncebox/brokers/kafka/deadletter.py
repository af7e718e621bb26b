"""The dead-letter topic of a source: dead messages go there too, as they came, before they are passed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from oncebox.brokers.contract import Delivery
from oncebox.brokers.kafka.producing import Writer
from oncebox.brokers.kafka.records import as_it_came, as_it_was_stored
from oncebox.errors import TooLarge
from oncebox.message import Message

log = logging.getLogger("oncebox.kafka")

AGAIN_SECONDS = 5.0
COPIES_MAX = 1000
"""Most that wait to be written."""


class DeadLetters:
    """Writes dead messages to a topic, each with its body, key and headers, and with the reason."""

    def __init__(
        self,
        topic: str,
        words: Mapping[str, Any],
        where: str,
        passed: Callable[[Delivery], None],
        again: Callable[[Delivery, float], None],
    ) -> None:
        self.topic = topic
        self._where = f"{where}, dead letters to {topic}"
        self._writer = Writer(words, self._where)
        self._passed = passed
        self._again = again
        self._writing: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Check that the topic exists; errors as a sink's."""
        await self._writer.open([self.topic])

    def bury(self, delivery: Delivery, reason: str) -> None:
        """Write it, and only then count it as finished. Does not wait: the partition goes on meanwhile."""
        task = asyncio.get_running_loop().create_task(self._bury(delivery, reason))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _bury(self, delivery: Delivery, reason: str) -> None:
        failed: BaseException | None
        try:
            [failed] = await self._writer.write([as_it_came(delivery, self.topic, reason)])
        except Exception as error:
            failed = error
        if failed is None:
            self._passed(delivery)
            return
        # It is dead in the database already, which the next delivery finds; only this copy is missing.
        log.warning("%s: not written, trying again: %s", self._where, failed)
        self._again(delivery, AGAIN_SECONDS)

    def copy(self, message: Message, reason: str) -> None:
        """Write one that died in the consumer's queue. Nobody delivers it again, so it is tried until it is there, or
        this is closed. Bounded: where the topic is away for long, the database alone has the rest."""
        if len(self._writing) >= COPIES_MAX:
            log.error("%s: no copy of message %s: too many wait already", self._where, message.id)
            return
        task = asyncio.get_running_loop().create_task(self._copy(message, reason))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _copy(self, message: Message, reason: str) -> None:
        while True:
            failed: BaseException | None
            try:
                [failed] = await self._writer.write([as_it_was_stored(message, self.topic, reason)])
            except Exception as error:
                failed = error
            if failed is None:
                return
            if isinstance(failed, TooLarge):
                log.error("%s: no copy of message %s: %s", self._where, message.id, failed)
                return
            log.warning("%s: not written, trying again: %s", self._where, failed)
            await asyncio.sleep(AGAIN_SECONDS)

    async def close(self) -> None:
        """Wait for what is being written, then disconnect."""
        if self._writing:
            _, late = await asyncio.wait(self._writing, timeout=AGAIN_SECONDS)
            for task in late:
                task.cancel()
        await self._writer.close()
