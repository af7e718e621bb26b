"""What a handler returns is kept, and every duplicate gets the same."""

from dataclasses import dataclass
from typing import Any

from oncebox import Status
from tests.core.kit import Call, Shop, event


@dataclass
class Entry:
    id: int
    notes: list[str]


VALUES = [
    (None, None),
    (0, 0),
    ("", ""),
    (False, False),
    ({"a": [1, {"b": "c"}]}, {"a": [1, {"b": "c"}]}),
    ((1, 2), [1, 2]),
    (Entry(1, ["x"]), {"id": 1, "notes": ["x"]}),
    ("it's \\ \U0001f9fe \x01", "it's \\ \U0001f9fe \x01"),
]


def returning(shop: Shop, billing: Any, *values: Any) -> None:
    @shop.handler(billing)
    async def returns(call: Call) -> Any:
        await call.db.effect(call.message.id)
        return values[call.payload["n"]]


async def test_the_first_delivery_and_every_duplicate_get_the_same_value(shop: Shop) -> None:
    billing = shop.consumer()
    returning(shop, billing, *(value for value, _ in VALUES))
    for n, (_, kept) in enumerate(VALUES):
        message = event(f"evt-{n}", payload={"n": n})
        first = await shop.settle(billing, message)
        second = await shop.deliver(billing, message)
        assert (first.status, second.status) == (Status.PROCESSED, Status.DUPLICATE)
        assert first.result == second.result == kept


async def test_a_result_without_a_json_form_is_dead_and_its_effects_are_rolled_back(shop: Shop) -> None:
    billing = shop.consumer()
    returning(shop, billing, object())
    outcome = await shop.settle(billing, event(payload={"n": 0}))
    assert (outcome.status, outcome.reason) == (Status.DEAD, "terminal")
    assert "has no JSON form" in str(outcome.error)
    assert not shop.effects()


async def test_a_result_is_kept_apart_from_the_ledger_and_only_when_there_is_one(shop: Shop) -> None:
    billing = shop.consumer()
    returning(shop, billing, None)
    await shop.settle(billing, event(payload={"n": 0}))
    assert (shop.count("ledger"), shop.count("result")) == (1, 0)
