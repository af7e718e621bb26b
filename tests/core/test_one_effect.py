"""However often and however close together a message is delivered, it takes effect once."""

from collections import Counter
from enum import Enum

import pytest

from oncebox import Backoff, Status
from tests.core.kit import Call, Shop, effect, event


async def test_the_first_delivery_is_processed_and_the_second_is_a_duplicate(shop: Shop) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    message = event(id="evt-1", type="paid", payload={"amount": 3})

    first = await shop.settle(billing, message)
    second = await shop.deliver(billing, message)

    assert (first.status, second.status) == (Status.PROCESSED, Status.DUPLICATE)
    assert first.result == second.result == {"effect": "evt-1"}
    assert shop.effects() == {"evt-1": 1}


class Told(str, Enum):  # noqa: UP042 - whose text is not its value, unlike StrEnum's
    SHOP = "shop"
    PAID = "paid"
    FIRST = "evt-1"


async def test_an_enums_member_is_the_text_that_it_equals(shop: Shop) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    await shop.settle(billing, event(id=Told.FIRST, source=Told.SHOP, type=Told.PAID))
    for message in (
        event(id=Told.FIRST, source=Told.SHOP, type=Told.PAID),
        event(source="shop", type="paid"),
    ):
        assert (await shop.deliver(billing, message)).status is Status.DUPLICATE
    assert shop.effects() == {"evt-1": 1}


@pytest.mark.parametrize("times", [16, 64])
async def test_deliveries_at_once_make_one_effect_and_all_get_its_result(shop: Shop, times: int) -> None:
    billing = shop.consumer(lock_timeout_seconds=60.0)
    shop.handler(billing)(effect)
    message = event(id="evt-1", type="paid", payload={"amount": 3})

    outcomes = await shop.deliver_at_once(billing, [message] * times)

    statuses = Counter(outcome.status for outcome in outcomes)
    if shop.mode == "inline":
        assert statuses == {Status.PROCESSED: 1, Status.DUPLICATE: times - 1}
    else:
        assert statuses == {Status.STORED: 1, Status.WAITING: times - 1}
        assert [item.outcome and item.outcome.status for item in await shop.work_off(billing)] == [
            "processed"
        ]
        outcomes = await shop.deliver_at_once(billing, [message] * times)
        assert {outcome.status for outcome in outcomes} == {Status.DUPLICATE}
    assert [outcome.result for outcome in outcomes] == [{"effect": "evt-1"}] * times
    assert shop.effects() == {"evt-1": 1}


async def test_deliveries_at_once_make_one_effect_although_the_first_fails(shop: Shop) -> None:
    billing = shop.consumer(lock_timeout_seconds=60.0, retry=Backoff(base_seconds=0))
    runs = 0

    @shop.handler(billing)
    async def fails_first(call: Call) -> object:
        nonlocal runs
        runs += 1
        await call.db.effect(call.message.id)
        if runs == 1:
            raise ConnectionError("the bank is away")
        return {"run": runs}

    message = event(id="evt-1", type="paid")
    outcomes = await shop.deliver_at_once(billing, [message] * 64)
    statuses = Counter(outcome.status for outcome in outcomes)
    if shop.mode == "inline":
        assert statuses == {Status.RETRY: 1, Status.PROCESSED: 1, Status.DUPLICATE: 62}
    else:
        worked = [item.outcome.status for item in await shop.work_off(billing) if item.outcome]
        assert worked == [Status.RETRY, Status.PROCESSED]
    assert runs == 2
    assert shop.effects() == {"evt-1": 1}
    assert (await shop.deliver(billing, message)).result == {"run": 2}


async def test_different_messages_at_once_each_take_effect(shop: Shop) -> None:
    billing = shop.consumer(lock_timeout_seconds=60.0)
    shop.handler(billing)(effect)

    await shop.deliver_at_once(billing, [event(id=f"evt-{n % 32}") for n in range(64)])
    await (shop.work_off(billing) if shop.mode == "stored" else shop.deliver(billing, event(id="evt-0")))

    assert shop.effects() == {f"evt-{n}": 1 for n in range(32)}


async def test_two_consumers_of_one_message_each_have_their_effect(shop: Shop) -> None:
    billing, mailing = shop.consumer("billing"), shop.consumer("mailing")
    for consumer in (billing, mailing):
        shop.handler(consumer)(effect)
        assert (await shop.settle(consumer, event(id="evt-1"))).status is Status.PROCESSED
    assert shop.effects() == {"evt-1": 2}


async def test_the_same_id_from_two_sources_is_two_messages(shop: Shop) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    # Parts that would be equal if they were joined by a delimiter.
    for source, identity in (("a:b", "c"), ("a", "b:c"), ("", "c"), ("a", "c")):
        outcome = await shop.settle(billing, event(id=identity, source=source))
        assert outcome.status is Status.PROCESSED
    assert shop.effects() == {"c": 3, "b:c": 1}


async def test_ids_are_compared_byte_by_byte(shop: Shop) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    # Case, trailing space, a composed and a decomposed é, a look-alike.
    ids = ["abc", "ABC", "abc ", "\u00e9", "e\u0301", "\u0430bc"]
    for identity in ids:
        assert (await shop.settle(billing, event(id=identity))).status is Status.PROCESSED
    assert shop.effects() == dict.fromkeys(ids, 1)
