"""The same id with another payload or type: kept and visible, the original untouched, nothing dropped."""

from typing import Any

import pytest

from oncebox import Status
from oncebox.core.outcomes import Answer
from oncebox.errors import PayloadConflict
from tests.core.fixtures import stored
from tests.core.kit import Shop, effect, event

OTHERS = pytest.mark.parametrize(
    "other", [{"payload": {"amount": 9}}, {"type": "refunded"}], ids=["payload", "type"]
)


@OTHERS
async def test_the_same_id_with_another_content_is_dead_by_conflict(
    shop: Shop, other: dict[str, Any]
) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    first = event(payload={"amount": 3})
    await shop.settle(billing, first)

    outcome = await shop.deliver(billing, event(**{"payload": {"amount": 3}, **other}))

    assert (outcome.status, outcome.reason, outcome.answer) == (Status.DEAD, "conflict", Answer.ACK)
    assert isinstance(outcome.error, PayloadConflict)
    assert "evt-1" in str(outcome.error)
    assert "9" not in str(outcome.error), "an error never quotes a payload"
    assert shop.effects() == {"evt-1": 1}
    assert (await shop.deliver(billing, first)).status is Status.DUPLICATE


@OTHERS
async def test_a_conflict_is_kept_whole_and_once_however_often_it_is_delivered(
    shop: Shop, other: dict[str, Any]
) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    await shop.settle(billing, event(payload={"amount": 3}))

    clash = event(**{"payload": {"amount": 3}, **other}, headers={"trace": "abc"}, key="account-7")
    outcomes = [await shop.deliver(billing, clash) for _ in range(3)]

    assert [(outcome.status, outcome.reason) for outcome in outcomes] == [(Status.DEAD, "conflict")] * 3
    rows = shop.rows(f"SELECT message_id, type, payload, key, reason FROM {shop.table('dead')}")
    assert [(i, t, bytes(p), k, r) for i, t, p, k, r in rows] == [
        ("evt-1", clash.type, clash.payload, "account-7", "conflict")
    ]


async def test_every_different_payload_under_one_id_is_kept(shop: Shop) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    await shop.settle(billing, event(payload={"amount": 0}))
    for amount in (1, 2, 1, 3):
        await shop.deliver(billing, event(payload={"amount": amount}))
    assert shop.count("dead") == 3
    assert shop.effects() == {"evt-1": 1}


@stored
async def test_a_conflict_with_a_message_that_still_waits_leaves_it_to_be_handled(shop: Shop) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    await shop.deliver(billing, event(payload={"amount": 3}))

    outcome = await shop.deliver(billing, event(payload={"amount": 9}))
    settled = await shop.work_off(billing)

    assert (outcome.status, outcome.reason) == (Status.DEAD, "conflict")
    assert [item.message.payload for item in settled] == [b'{"amount":3}']
    assert shop.effects() == {"evt-1": 1}


async def test_a_conflict_of_a_dead_message_lies_beside_it(shop: Shop) -> None:
    billing = shop.consumer()
    original = event(payload=b"not JSON")
    shop.handler(billing)(effect)
    assert (await shop.settle(billing, original)).reason == "undecodable"

    assert (await shop.deliver(billing, event(payload={"amount": 9}))).reason == "conflict"
    assert (await shop.deliver(billing, original)).reason == "undecodable"
    assert sorted(reason for _, reason, _, _ in shop.dead()) == ["conflict", "undecodable"]
    assert not shop.effects()


async def test_by_choice_whitespace_and_key_order_do_not_make_a_conflict(shop: Shop) -> None:
    billing = shop.consumer(fingerprint="canonical")
    shop.handler(billing)(effect)
    await shop.settle(billing, event(payload=b'{"a":1,"b":2}'))
    same = await shop.deliver(billing, event(payload=b'{ "b": 2, "a": 1.0 }'))
    other = await shop.deliver(billing, event(payload=b'{"a":1,"b":3}'))
    assert (same.status, other.status) == (Status.DUPLICATE, Status.DEAD)
