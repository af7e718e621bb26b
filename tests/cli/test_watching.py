"""What two looks tell that one does not: rates, and the keys that stand still."""

from typing import Any

from oncebox import Backoff, Dead, Retry
from oncebox.cli.watching import Look, compared, look
from oncebox.runtime.inspect import Reader
from tests.core.fixtures import kind, mode, on, pytest_pyfunc_call, shop, shop_database, shop_url, stored
from tests.core.kit import Call, Shop, event
from tests.order.lines import BY_KEY, case

__all__ = ["kind", "mode", "pytest_pyfunc_call", "shop", "shop_database", "shop_url"]
pytestmark = [stored, on("sqlite", "psycopg")]


async def seen(reader: Reader, before: Look | None, at: float) -> Look:
    return compared(await reader.ask(look(reader.database.queries, [], None, 0.0, at)), before)


async def test_rates_are_what_was_added_since_the_last_look(shop: Shop) -> None:
    billing = shop.consumer("billing", retry=Backoff(attempts=9))
    orders = shop.consumer("orders", **BY_KEY)

    @shop.handler(billing)
    async def some(call: Call) -> None:
        if call.message.type == "bad":
            # A delay of the policy's is drawn, and may be over before the test is.
            raise Retry("later", after=3600)

    @shop.handler(orders)
    async def refuses(call: Call) -> None:
        raise Dead("no")

    async def handled(*messages: Any) -> None:
        for message in messages:
            await shop.deliver(billing, message)
        for item in await shop.work_off(billing):
            assert item.outcome is not None
            shop.app.tallies.add("billing", item.message, item.outcome)
        await shop.app.async_state.write_counts()

    reader = Reader(shop.app.database)
    try:
        await handled(event("evt-0"))
        first = await seen(reader, None, 10.0)
        assert (first.rates, first.keys) == ({}, [])
        await handled(*(event(f"evt-{n}") for n in range(1, 21)), event("bad", type="bad"), event("evt-0"))
        await shop.deliver(orders, case("a", 1))
        await shop.deliver(orders, case("a", 2))
        await shop.work_off(orders)
        second = await seen(reader, first, 15.0)
        rates = second.rates["billing"]
        assert (rates.processed, rates.failed, rates.duplicates, rates.waiting) == (4.0, 0.2, 0.2, 0.2)
        assert second.rates["orders"].waiting == 0.2
        assert [(key.consumer, key.key, key.head) for key in second.keys] == [("orders", "a", "a-1")]
        third = await seen(reader, second, 20.0)
        assert third.rates["billing"].processed == 0.0
    finally:
        await reader.close()
