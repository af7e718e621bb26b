"""Publishing with confirms: one channel, opened when it is needed and again when it was lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, cast

from aiormq.abc import AbstractChannel
from aiormq.channel import Channel
from aiormq.exceptions import DeliveryError, PublishError
from pamqp.commands import Basic

from oncebox.brokers.rabbitmq.connection import CALL_SECONDS, Link, closed
from oncebox.errors import BrokerError, BrokerUnavailable, ConfigError, QueueFull


class Letter(NamedTuple):
    """One message on its way out."""

    exchange: str
    routing_key: str
    properties: Basic.Properties
    body: bytes


class Publisher:
    """A confirmed, mandatory publisher. `open` it before, `close` it after."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._channel: AbstractChannel | None = None
        self._opening = asyncio.Lock()
        self._entered = False
        self._on_the_way: dict[str, asyncio.Future[None]] = {}
        """Ids that are not confirmed yet, with what tells their end."""
        self.declared: set[str] = set()
        """Queues known to be there, since this channel was opened."""

    async def channel(self) -> AbstractChannel:
        """The channel; `BrokerUnavailable` or `ConfigError` when there can be none."""
        if not self._entered:
            self._entered = True
            self._opening = asyncio.Lock()
            self._link.enter()
        async with self._opening:
            if self._channel is None or self._channel.is_closed:
                self.declared = set()
                self._channel = await self._link.channel(confirms=True)
            return self._channel

    async def close(self) -> None:
        """Let the channel and the connection go."""
        if not self._entered:
            return
        self._entered = False
        channel, self._channel = self._channel, None
        if channel is not None:
            await closed(channel)
        await self._link.leave()

    async def publish(self, letters: Sequence[Letter]) -> list[BaseException | None]:
        """One entry per letter: None when the broker has it, else why it may not have."""
        replies: list[BaseException | None] = []
        try:
            channel = await self.channel()
        except BrokerUnavailable as error:
            return [error] * len(letters)
        except ConfigError as error:
            # It worked when the sink was opened, and no message is to blame: a broker that is starting, or
            # being changed, may let us in again.
            return [BrokerUnavailable(str(error))] * len(letters)
        for run in _runs(letters):
            async with self._alone({letter.properties.message_id or "" for letter in run}):
                outcomes = await asyncio.gather(
                    *(
                        # Not one by one to the socket: the confirmation is what is waited for.
                        cast("Channel", channel).basic_publish(
                            letter.body,
                            exchange=letter.exchange,
                            routing_key=letter.routing_key,
                            properties=letter.properties,
                            mandatory=True,
                            timeout=CALL_SECONDS,
                            wait=False,
                        )
                        for letter in run
                    ),
                    return_exceptions=True,
                )
            replies += [
                self._reply(letter, outcome) if isinstance(outcome, BaseException) else None
                for letter, outcome in zip(run, outcomes, strict=True)
            ]
        return replies

    @asynccontextmanager
    async def _alone(self, ids: set[str]) -> AsyncIterator[None]:
        """While none of `ids` is on its way by another call: of two with one id that are both returned, aiormq
        would take the second for delivered."""
        while before := {self._on_the_way[each] for each in ids if each in self._on_the_way}:
            await asyncio.wait(before)
        over = asyncio.get_running_loop().create_future()
        self._on_the_way |= dict.fromkeys(ids, over)
        try:
            yield
        finally:
            for each in ids:
                del self._on_the_way[each]
            over.set_result(None)

    def _reply(self, letter: Letter, error: BaseException) -> BaseException:
        if isinstance(error, PublishError):
            return BrokerError(
                f"exchange {letter.exchange!r} has no queue for routing key {letter.routing_key!r}; bind one"
            )
        if isinstance(error, DeliveryError):
            return QueueFull(f"{self._link.where} did not take the message: a queue of its route is full")
        if isinstance(error, TimeoutError):
            return BrokerUnavailable(
                f"{self._link.where} did not confirm the message within {CALL_SECONDS:g} s"
            )
        return self._link.unavailable(error)


def _runs(letters: Sequence[Letter]) -> list[list[Letter]]:
    """In order, with no id twice in a run: a message that is returned is told apart by its id alone."""
    runs: list[list[Letter]] = [[]]
    ids: set[str | None] = set()
    for letter in letters:
        if letter.properties.message_id in ids:
            runs.append([])
            ids = set()
        runs[-1].append(letter)
        ids.add(letter.properties.message_id)
    return runs
