"""A database that goes away: sources pause, nothing is acked or charged, and work resumes by itself."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncebox import App, Backoff, Status
from oncebox.brokers.memory import Memory
from oncebox.errors import DatabaseUnavailable
from tests.core.drivers import KINDS
from tests.core.fixtures import inline, postgresql
from tests.core.kit import Call, Shop, effect, event
from tests.servers import Postgres, Proxy
from tests.waiting import eventually_async

PATIENCE_SECONDS = 30.0
pytestmark = postgresql


@pytest.fixture
def proxy(postgres: Postgres, proxy_to: Callable[[int], Proxy]) -> Proxy:
    return proxy_to(postgres.port)


@pytest.fixture
def shop(kind: str, mode: str, shop_url: str, proxy: Proxy) -> Iterator[Shop]:
    """A shop whose app reaches its database through the proxy; the observer does not."""
    shop = Shop(kind, proxy.through(shop_url), mode, seen=shop_url)
    yield shop
    if not shop.closed:
        asyncio.run(shop.close())


async def until(predicate: Callable[[], Any]) -> None:
    await eventually_async(predicate, PATIENCE_SECONDS)


async def test_connections_that_are_cut_while_handlers_run_lose_and_double_nothing(
    shop: Shop, proxy: Proxy
) -> None:
    memory = Memory()
    billing = shop.consumer("billing", memory.queue("payments"), retry=Backoff(attempts=1))
    runs = 0

    @shop.handler(billing)
    async def counted(call: Call) -> None:
        nonlocal runs
        runs += 1
        await call.db.effect(call.message.id)
        if runs in (5, 20, 40):
            proxy.cut()
        await call.db.run("SELECT 1")

    memory.put("payments", *(event(f"evt-{n}") for n in range(60)), duplicates=1)
    async with shop.app.running():
        async with asyncio.timeout(PATIENCE_SECONDS):
            await memory.drained()
        await until(lambda: shop.count("queue") == 0)
    assert shop.effects() == {f"evt-{n}": 1 for n in range(60)}
    assert shop.count("attempt") == 0, "nothing is charged"


async def test_while_the_database_refuses_nothing_is_answered_and_then_it_resumes(
    shop: Shop, proxy: Proxy
) -> None:
    memory = Memory()
    shop.handler(shop.consumer("billing", memory.queue("payments")))(effect)
    async with shop.app.running():
        memory.put("payments", event("before"))
        await until(lambda: shop.effects()["before"] == 1)
        proxy.cut(refuse=True)
        memory.put("payments", *(event(f"during-{n}") for n in range(5)))
        await until(lambda: memory.stats()["payments"].in_flight > 0)
        stats = memory.stats()["payments"]
        assert stats.depth >= 5, "none is acked while nothing can be written down"
        assert stats.nacked == 0
        proxy.pass_through()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await memory.drained()
        await until(lambda: shop.count("queue") == 0)
    assert shop.effects() == {"before": 1, **{f"during-{n}": 1 for n in range(5)}}


@inline
async def test_a_single_call_tells_its_caller_and_the_next_one_works(shop: Shop, proxy: Proxy) -> None:
    billing = shop.consumer()
    cut = True

    @shop.handler(billing)
    async def loses(call: Call) -> None:
        nonlocal cut
        await call.db.effect(call.message.id)
        if cut:
            cut = False
            proxy.cut()
        await call.db.run("SELECT 1")

    with pytest.raises(DatabaseUnavailable):
        await shop.deliver(billing, event())
    assert (await shop.deliver(billing, event())).status is Status.PROCESSED
    assert shop.attempts("evt-1") == []
    assert shop.effects() == {"evt-1": 1}


async def test_an_unreachable_database_is_said_without_its_password(kind: str) -> None:
    chosen = KINDS[kind]
    app = App(f"{chosen.scheme}://someone:hunter2@127.0.0.1:1/shop")
    billing = app.consumer("billing")
    billing.handler()(_fine_async if chosen.is_async else _fine)
    with pytest.raises(DatabaseUnavailable) as refused:
        await billing.process(event()) if chosen.is_async else billing.process_sync(event())
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None, "nor in what led to it"


def _fine(payload: dict[str, Any]) -> None:
    """Nothing to do."""


async def _fine_async(payload: dict[str, Any]) -> None:
    """Nothing to do."""
