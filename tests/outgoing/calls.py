"""A consumer whose effect calls a provider that remembers every call."""

import asyncio
from collections.abc import Callable
from typing import Any

from oncebox import Backoff, Consumer, Message
from oncebox.core.effects import Call, work_effect
from oncebox.core.steps import Op
from oncebox.core.work import Item, Work
from tests.core.kit import Shop, event

AT_ONCE = Backoff(attempts=4, base_seconds=0, max_seconds=0)
POLICY = ("timeout", "retry", "lease_seconds", "concurrency")


class Provider:
    """The outside world: what it was asked, by whom, and what it does about it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        """(message id, idempotency key) of every call that arrived."""
        self.does: Callable[[Call], Any] = lambda call: {"receipt": call.message.id}

    def __call__(self, call: Call) -> Any:
        self.calls.append((call.message.id, call.idempotency_key))
        return self.does(call)

    def times(self, message_id: str = "evt-1") -> int:
        return [call[0] for call in self.calls].count(message_id)


class Mailer:
    """A shop's consumer with one effect, worked on by hand."""

    def __init__(self, shop: Shop, provider: Provider, **words: Any) -> None:
        self.shop = shop
        self.provider = provider
        policy = {name: words.pop(name) for name in POLICY if name in words}
        self.consumer: Consumer = shop.consumer("mailer", mode="stored", **{"retry": AT_ONCE, **policy})

        async def waiting(message: Message, call: Call) -> Any:
            await asyncio.sleep(0)
            return provider(call)

        def blocking(message: Message, call: Call) -> Any:
            return provider(call)

        self.consumer.effect("paid", **words)(waiting if shop.kind.is_async else blocking)

    async def receive(self, message_id: str = "evt-1") -> None:
        await self.shop.deliver(self.consumer, event(message_id))

    async def work(self, slot: int = 1, through: Callable[[Op[int]], Op[Any]] = lambda op: op) -> list[Item]:
        """One turn; what it settled."""
        settled: list[Item] = []

        def flow(work: Work) -> Op[Any]:
            return through(work_effect(work))

        await self.shop.perform(self.consumer, flow, slot=slot, settled=settled)
        return settled

    def lapse(self) -> None:
        """Time passes: every lease is over."""
        past = "0" if self.shop.kind.engine == "sqlite" else "now() - interval '1 hour'"
        self.shop.rows(f"UPDATE {self.shop.table('queue')} SET due = {past}")

    def age(self, seconds: int) -> None:
        """The first call was made so long ago."""
        back = f"{seconds} * 1000000" if self.shop.kind.engine == "sqlite" else f"interval '{seconds} s'"
        self.shop.rows(f"UPDATE {self.shop.table('effect')} SET first_started = first_started - {back}")

    def effect(self, message_id: str = "evt-1") -> tuple[str, int] | None:
        """(state, calls) on record."""
        rows = self.shop.rows(
            f"SELECT state, calls FROM {self.shop.table('effect')} WHERE message_id = ?", message_id
        )
        return (rows[0][0], rows[0][1]) if rows else None

    def is_queued(self) -> bool:
        return self.shop.count("queue") > 0
