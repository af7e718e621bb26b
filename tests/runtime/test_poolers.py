"""Through a transaction pooler nothing may live on a session, and the promise is the same."""

import asyncio
from collections.abc import Iterator

import pytest

from oncebox import Backoff, Status
from oncebox.brokers.memory import Memory
from oncebox.errors import TransactionError
from tests.core.fixtures import inline, postgresql
from tests.core.kit import Call, Shop, effect, event
from tests.waiting import eventually_async

PATIENCE_SECONDS = 30.0
pytestmark = postgresql


@pytest.fixture
def pg_url(recycled_pg_url: str) -> str:
    """A shop migrates before anything else."""
    return recycled_pg_url


@pytest.fixture
def shop(kind: str, mode: str, pg_url: str, pgbouncer_url: str) -> Iterator[Shop]:
    """A shop whose app goes through PgBouncer; the observer does not."""
    shop = Shop(kind, f"{pgbouncer_url}?pooler=transaction", mode, seen=pg_url)
    yield shop
    if not shop.closed:
        asyncio.run(shop.close())


async def test_deliveries_at_once_make_one_effect(shop: Shop) -> None:
    billing = shop.consumer(lock_timeout_seconds=30.0)
    shop.handler(billing)(effect)
    outcomes = await shop.deliver_at_once(billing, [event()] * 16)
    if shop.mode == "stored":
        await shop.work_off(billing)
    else:
        assert sorted(outcome.status for outcome in outcomes) == ["duplicate"] * 15 + ["processed"]
    assert shop.effects() == {"evt-1": 1}


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK"])
async def test_a_handler_that_ends_its_transaction_is_refused(shop: Shop, sql: str) -> None:
    billing = shop.consumer(batch=5, retry=Backoff(attempts=1))

    @shop.handler(billing, "paid")
    async def ends(call: Call) -> None:
        await call.db.effect(call.message.id)
        await call.db.run(sql)

    shop.handler(billing, "good")(effect)
    messages = [event("good-1", type="good"), event(), event("good-2", type="good")]
    outcomes = await shop.settle_all(billing, messages)

    assert [outcome.status for outcome in outcomes["evt-1"]] == [Status.DEAD]
    assert isinstance(outcomes["evt-1"][0].error, TransactionError)
    assert shop.effects() == {"good-1": 1, "good-2": 1}


async def run_through(shop: Shop, **policy: object) -> None:
    memory = Memory()
    # The pool has two connections: one for the worker's transaction, one for its marker beside it.
    words = {"concurrency": 1, **policy} if shop.mode == "stored" else policy
    shop.handler(shop.consumer("billing", memory.queue("payments"), **words))(effect)
    memory.put("payments", *(event(f"evt-{n}") for n in range(40)), duplicates=1)
    async with shop.app.running():
        async with asyncio.timeout(PATIENCE_SECONDS):
            await memory.drained()
        await eventually_async(lambda: shop.count("queue") == 0, PATIENCE_SECONDS)
    assert shop.effects() == {f"evt-{n}": 1 for n in range(40)}


@pytest.mark.parametrize("batch", [1, 10])
async def test_a_running_app_takes_every_message_once(shop: Shop, batch: int) -> None:
    await run_through(shop, batch=batch)


@inline
async def test_a_running_group_takes_every_message_once(shop: Shop) -> None:
    await run_through(shop, durability="group")
