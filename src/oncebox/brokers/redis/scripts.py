"""What one consumer of a group asks of Redis. Steps that must be one are Lua scripts, beside this file."""

from __future__ import annotations

from collections.abc import Collection
from importlib import resources
from typing import Any

from redis.asyncio import Redis as Client

NAMES = "oncebox-"
"""How the names of our consumers begin."""
GONE_AFTER_MS = 3_600_000
"""A consumer of ours that did nothing for so long belongs to a process that died."""


class Scripts:
    """For one consumer of one group; each script's head says what it does."""

    def __init__(
        self,
        client: Client,
        stream: str,
        group: str,
        consumer: str,
        *,
        delete: bool = False,
        deliveries_max: int = 0,
        dead_letter: str = "",
    ) -> None:
        self.client = client
        self.stream = stream
        self.dead_letter = dead_letter
        self._group = group
        self._consumer = consumer
        self._delete = "delete" if delete else ""
        self._deliveries_max = deliveries_max
        self._claim = client.register_script(_text("claim"))
        self._answer = client.register_script(_text("answer"))
        self._leave = client.register_script(_text("leave"))

    async def claim(self, visibility_ms: int, cursor: bytes, count: int) -> Any:
        """(cursor, [(id, fields, count)], trimmed ids, ids moved to the dead letters)"""
        # In a cluster, all keys of a script lie in one slot: only what is needed is named.
        keys = [self.stream, self.dead_letter] if self.dead_letter else [self.stream]
        words = (visibility_ms, cursor, count, self._deliveries_max, self._delete)
        return await self._claim(keys=keys, args=[self._group, self._consumer, *words])

    async def read(self, client: Client, count: int, wait_ms: int) -> Any:
        """New entries, [(stream, [(id, fields)])], or None when there were none in time."""
        group = ("GROUP", self._group, self._consumer)
        words = ("XREADGROUP", *group, "COUNT", count, "BLOCK", wait_ms, "STREAMS", self.stream, ">")
        return await client.execute_command(*words)  # type: ignore[no-untyped-call]

    async def answer(self, what: str, argument: str, tags: Collection[tuple[bytes, int]]) -> None:
        """Answer those that are still this consumer's."""
        if tags:
            words = [word for tag in tags for word in tag]
            argument = self._delete if what == "ack" else argument
            await self._answer(keys=[self.stream], args=[self._group, self._consumer, what, argument, *words])

    async def leave(self, consumer: str = "") -> None:
        """Forget consumers of processes that died, and `consumer`, unless they have something in hand."""
        await self._leave(keys=[self.stream], args=[self._group, consumer, NAMES, GONE_AFTER_MS])


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(f"{name}.lua").read_text()
