"""A relay behind a transaction pooler: nobody is notified, no session is its own, and polling is the truth."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.core.fixtures import on, stored
from tests.core.kit import Call, Shop, event
from tests.outgoing.kit import ScriptedSink, outbox_ids, put, put_slots_back
from tests.waiting import eventually_async

pytestmark = [stored, on("psycopg", "asyncpg")]


@pytest.fixture
def shop(kind: str, mode: str, pg_url: str, pgbouncer_url: str, sink: ScriptedSink) -> Iterator[Shop]:
    """A shop whose app goes through PgBouncer; the observer does not."""
    url = f"{pgbouncer_url}?pooler=transaction"
    shop = Shop(kind, url, mode, seen=pg_url, sink=sink, source="shop")
    put_slots_back(shop)
    yield shop
    if not shop.closed:
        asyncio.run(shop.close())


async def test_what_was_committed_is_published_in_order(shop: Shop, sink: ScriptedSink) -> None:
    billing = shop.consumer(concurrency=1)

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> None:
        call.tx.publish("receipt", {}, id=f"out-{call.message.id}", key="h", ordered=True)

    async with shop.app.running():
        put(shop, *(f"n{n}" for n in range(20)), key="k")
        for n in range(5):
            await shop.deliver(billing, event(f"e{n}"))
        await eventually_async(lambda: len(sink.ids) >= 25 and not outbox_ids(shop), 30)
    assert [id_ for id_ in sink.ids if id_.startswith("n")] == [f"n{n}" for n in range(20)]
    assert [id_ for id_ in sink.ids if id_.startswith("out")] == [f"out-e{n}" for n in range(5)]
