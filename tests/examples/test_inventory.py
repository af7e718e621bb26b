"""examples/inventory.py: stock is reserved once per order, whole orders only, and never oversold."""

from typing import Any

from oncebox import Message
from tests.examples.conftest import Rows


async def test_orders_are_reserved_once_and_the_one_too_many_is_dead(example: Any, rows: Rows) -> None:
    await example.main()
    assert rows("SELECT sku, reserved FROM stock ORDER BY sku") == [("kettle", 4), ("teapot", 2)]
    reservations = rows("SELECT order_id, sku, quantity FROM reservation ORDER BY order_id, sku")
    filled = sorted({row[0] for row in reservations})
    assert len(filled) == 2
    assert reservations == [(order, sku, n) for order in filled for sku, n in (("kettle", 2), ("teapot", 1))]
    (left,) = {"1", "2", "3"} - set(filled)
    assert rows("SELECT message_id, reason, attempts, error FROM oncebox.dead") == [
        (f"order-{left}-placed", "terminal", 1, "not enough of sku kettle")
    ]


async def test_dead_order_is_kept_whole(example: Any, rows: Rows) -> None:
    await example.main()
    ((message_id, payload),) = rows("SELECT message_id, payload FROM oncebox.dead")
    assert bytes(payload) == {order.id: order.payload for order in example.orders()}[message_id]


async def test_concurrent_orders_with_duplicates_never_oversell(example: Any, rows: Rows) -> None:
    wanted = [
        Message(
            id=f"small-{n}",
            source="shop",
            type="order.placed",
            payload=example.OrderPlaced(f"small-{n}", [example.Line("teapot", 1)]),
        )
        for n in range(30)
    ]
    async with example.app.running(), example.app.running():
        example.broker.put("orders", *wanted, duplicates=3)
        await example.broker.drained("orders")
    # Ten teapots: two orders for kettle and teapot at most, the rest by ones.
    assert rows("SELECT reserved FROM stock WHERE sku = 'teapot'") == [(10,)]
    assert rows("SELECT sum(quantity) FROM reservation WHERE sku = 'teapot'") == [(10,)]
    assert rows("SELECT count(*), count(DISTINCT order_id) FROM reservation WHERE sku = 'teapot'") == [
        (10, 10)
    ]
    assert rows("SELECT count(*) FROM oncebox.dead") == [(33 - 10,)]
    assert rows("SELECT count(*) FROM oncebox.ledger") == [(33,)]
