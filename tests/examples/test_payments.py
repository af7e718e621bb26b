"""examples/payments.py: every payment is charged, entered and receipted once."""

from typing import Any

import pytest

from oncebox import Message
from oncebox.brokers.memory import QueueStats
from tests.examples.conftest import Rows
from tests.waiting import eventually_async


async def test_payments_have_one_effect_each_however_often_they_come(example: Any, rows: Rows) -> None:
    await example.main()
    assert rows("SELECT payment, account, amount_cents FROM entry ORDER BY payment") == [
        ("pay-1", "ada", 100),
        ("pay-2", "ben", 200),
        ("pay-3", "ada", 300),
        ("pay-4", "ben", 400),
        ("pay-5", "ada", 500),
    ]
    assert rows("SELECT id, balance_cents FROM account ORDER BY id") == [("ada", 9_100), ("ben", 9_400)]
    assert rows("SELECT payment FROM receipt ORDER BY payment") == [(f"pay-{n}",) for n in range(1, 6)]


async def test_a_storm_of_duplicates_on_two_runtimes_changes_nothing(example: Any, rows: Rows) -> None:
    async with example.app.running(), example.app.running():
        example.broker.put("payments", *example.captures(), duplicates=20)
        await example.broker.drained("payments")
    assert example.broker.stats()["payments"].delivered >= 6 * 24
    assert rows("SELECT count(*), count(DISTINCT payment) FROM entry") == [(5, 5)]
    assert rows("SELECT sum(balance_cents) FROM account") == [(20_000 - 1_500,)]


async def test_a_connection_lost_before_its_acks_costs_redeliveries_and_no_second_charge(
    example: Any, rows: Rows
) -> None:
    def queue() -> QueueStats:
        return example.broker.stats()["payments"]  # type: ignore[no-any-return]

    async with example.app.running():
        for _ in range(3):
            lost = queue().dropped
            while queue().dropped == lost:
                example.broker.put("payments", *example.captures())
                await eventually_async(lambda: queue().in_flight or not queue().ready)
                example.billing.source.drop()
        await example.broker.drained("payments")
    assert queue().redelivered > 0
    assert rows("SELECT count(*), count(DISTINCT payment) FROM entry") == [(5, 5)]


async def test_payment_for_an_unknown_account_is_kept_with_its_reason(example: Any, rows: Rows) -> None:
    await example.main()
    assert rows("SELECT message_id, reason, error FROM oncebox.dead") == [
        ("evt-6", "terminal", "no such account")
    ]
    assert rows("SELECT count(*) FROM entry WHERE payment = 'pay-6'") == [(0,)]


async def test_receipts_carry_a_key_that_is_the_same_whoever_makes_it(example: Any, rows: Rows) -> None:
    await example.main()
    key = example.MessageKey("billing", "payments", "evt-1")
    assert rows("SELECT idempotency_key FROM receipt WHERE payment = 'pay-1'") == [
        (str(example.derived(key, "receipt")),)
    ]


def test_a_duplicate_gets_the_first_ones_balance(example: Any) -> None:
    payment = example.PaymentCaptured("pay-9", "ada", 1_000, "ada@example.com")
    message = Message(id="evt-9", source="payments", type="payment.captured", payload=payment)
    try:
        first = example.billing.process_sync(message)
        second = example.billing.process_sync(message)
    finally:
        example.app.close()
    assert (first.status, second.status) == ("processed", "duplicate")
    assert first.result == second.result == {"balance_cents": 9_000}


def test_other_amount_under_a_known_id_is_a_conflict_and_not_charged(example: Any, rows: Rows) -> None:
    def capture(amount_cents: int) -> Message:
        payment = example.PaymentCaptured("pay-9", "ada", amount_cents, "ada@example.com")
        return Message(id="evt-9", source="payments", type="payment.captured", payload=payment)

    try:
        assert example.billing.process_sync(capture(100)).status == "processed"
        assert example.billing.process_sync(capture(999)).reason == "conflict"
    finally:
        example.app.close()
    assert rows("SELECT balance_cents FROM account WHERE id = 'ada'") == [(9_900,)]


@pytest.mark.parametrize("field", ["payment", "account", "amount_cents", "email"])
def test_a_payment_that_lacks_a_field_is_kept_as_undecodable(example: Any, field: str) -> None:
    body = {"payment": "pay-9", "account": "ada", "amount_cents": 1, "email": "ada@example.com"}
    del body[field]
    try:
        outcome = example.billing.process_sync(Message(id="evt-9", type="payment.captured", payload=body))
    finally:
        example.app.close()
    assert (outcome.status, outcome.reason) == ("dead", "undecodable")
