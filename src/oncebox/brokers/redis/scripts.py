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
        delete: bool,
        dead_letter: str | None,
    ) -> None:
        self.client = client
        self.stream = stream
        self._group = group
        self._consumer = consumer
        self._delete = "delete" if delete else ""
        # In a cluster, all keys of a script lie in one slot: only what is needed is named.
        self._keys = [stream] if dead_letter is None else [stream, dead_letter]
        self._claim = client.register_script(_text("claim"))
        self._answer = client.register_script(_text("answer"))
        self._leave = client.register_script(_text("leave"))

    async def claim(self, visibility_ms: int, cursor: bytes, count: int) -> Any:
        """(cursor, [(id, fields, count)], trimmed ids)"""
        words = (visibility_ms, cursor, count)
        return await self._claim(keys=[self.stream], args=[self._group, self._consumer, *words])

    async def read(self, client: Client, count: int, wait_ms: int) -> Any:
        """New entries, [(stream, [(id, fields)])], or None when there were none in time."""
        group = ("GROUP", self._group, self._consumer)
        words = ("XREADGROUP", *group, "COUNT", count, "BLOCK", wait_ms, "STREAMS", self.stream, ">")
        return await client.execute_command(*words)  # type: ignore[no-untyped-call]

    async def answer(self, what: str, argument: str, tags: Collection[tuple[bytes, int]]) -> None:
        """Answer those that are still this consumer's."""
        if tags:
            args = [self._group, self._consumer, what, argument, self._delete]
            keys = self._keys if what == "bury" else [self.stream]
            await self._answer(keys=keys, args=[*args, *(word for tag in tags for word in tag)])

    async def leave(self, consumer: str = "") -> None:
        """Forget consumers of processes that died, and `consumer`, unless they have something in hand."""
        await self._leave(keys=[self.stream], args=[self._group, consumer, NAMES, GONE_AFTER_MS])


def _text(name: str) -> str:
    return resources.files("oncebox.brokers.redis").joinpath(f"{name}.lua").read_text()
