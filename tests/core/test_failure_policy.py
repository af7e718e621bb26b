"""What becomes of a message whose handler fails, and what is kept of it."""

import sqlite3
from datetime import timedelta
from typing import Any

import pytest

from oncebox import Backoff, Dead, Discard, Retry, Status
from oncebox.core.outcomes import Answer
from tests.core.fixtures import on, stored
from tests.core.kit import Call, Shop, event

ONCE_MORE = Backoff(attempts=3, base_seconds=0)


def raising(shop: Shop, billing: Any, *failures: Exception) -> list[int]:
    """A handler that raises these in turn, after an effect; then it works. Returns the attempts it was told."""
    left, told = list(failures), []

    @shop.handler(billing)
    async def fails(call: Call) -> str:
        told.append(call.tx.attempt)
        await call.db.effect(call.message.id)
        if left:
            raise left.pop(0)
        return "done"

    return told


async def test_a_retryable_failure_is_rolled_back_and_tried_again(shop: Shop) -> None:
    billing = shop.consumer(retry=ONCE_MORE)
    told = raising(shop, billing, ConnectionError("the bank is away"))

    first = await shop.settle(billing, event())
    assert (first.status, first.answer) == (Status.RETRY, Answer.NACK)
    assert isinstance(first.error, ConnectionError)
    assert not shop.effects()

    second = await shop.settle(billing, event(deliveries=2))
    assert (second.status, second.result) == (Status.PROCESSED, "done")
    assert told == [1, 2]
    assert shop.effects() == {"evt-1": 1}


async def test_out_of_attempts_it_is_dead_with_every_attempt_kept(shop: Shop) -> None:
    billing = shop.consumer(retry=ONCE_MORE)
    raising(shop, billing, *(ValueError(f"failure {n}") for n in (1, 2, 3)))

    for n in (1, 2):
        assert (await shop.settle(billing, event(deliveries=n))).status is Status.RETRY
    last = await shop.settle(billing, event(deliveries=3))

    assert (last.status, last.reason, last.answer) == (Status.DEAD, "exhausted", Answer.ACK)
    assert shop.dead() == [("evt-1", "exhausted", "ValueError", "failure 3")]
    attempts = shop.attempts("evt-1")
    assert [(n, bool(died), kind, text) for n, died, kind, text, _ in attempts] == [
        (n, False, "ValueError", f"failure {n}") for n in (1, 2, 3)
    ]
    assert all("in fails" in traceback for *_, traceback in attempts)
    assert shop.rows(f"SELECT attempts FROM {shop.table('dead')}") == [(3,)]
    assert not shop.effects()
    assert (await shop.deliver(billing, event())).status is Status.DEAD


@pytest.mark.parametrize(
    ("error", "reason"),
    [(KeyError("sku"), "terminal"), (Dead("fraud"), "terminal")],
    ids=["listed", "Dead"],
)
async def test_a_terminal_failure_is_dead_at_once_and_kept_whole(
    shop: Shop, error: Exception, reason: str
) -> None:
    billing = shop.consumer(retry=ONCE_MORE, terminal=(LookupError,))
    raising(shop, billing, error)
    message = event(payload={"n": 7}, headers=[("a", b"\xff"), ("a", b"2")], key="k", source="payments")

    outcome = await shop.settle(billing, message)

    assert (outcome.status, outcome.reason) == (Status.DEAD, reason)
    columns = "source, type, key, payload, content_type, reason, attempts"
    ((source, kind, key, payload, content, why, attempts),) = shop.rows(
        f"SELECT {columns} FROM {shop.table('dead')}"
    )
    assert (source, kind, key, bytes(payload)) == ("payments", "paid", "k", b'{"n":7}')
    assert (content, why, attempts) == ("application/json", reason, 1)
    assert shop.count("queue") == 0
    assert not shop.effects()


async def test_a_discarded_message_has_no_effect_and_is_not_dead(shop: Shop) -> None:
    billing = shop.consumer()
    raising(shop, billing, Discard("a test order"))

    outcome = await shop.settle(billing, event())
    again = await shop.deliver(billing, event())

    assert (outcome.status, outcome.reason, outcome.answer) == (Status.DISCARDED, "a test order", Answer.ACK)
    assert again.status is Status.DISCARDED
    assert shop.count("dead") == shop.count("queue") == 0
    assert shop.attempts("evt-1")[0][3] == "a test order"
    assert not shop.effects()


async def test_a_handler_may_say_when_to_try_again(shop: Shop) -> None:
    billing = shop.consumer(retry=ONCE_MORE)
    delays: list[Any] = [90, 90.0, timedelta(seconds=90)]
    raising(shop, billing, *(Retry("rate limited", after=after) for after in delays))
    for n, _ in enumerate(delays):
        outcome = await shop.settle(billing, event(f"evt-{n}"))
        assert (outcome.status, outcome.delay_seconds) == (Status.RETRY, 90)


async def test_an_absurd_delay_is_bounded_and_charged(shop: Shop) -> None:
    billing = shop.consumer(retry=Backoff(attempts=1000, base_seconds=0))
    delays: list[Any] = [float("nan"), float("inf"), 1e300, -1e300, timedelta.max, timedelta.min]

    @shop.handler(billing)
    async def puts_off(call: Call) -> None:
        raise Retry("some day", after=delays[call.payload["n"]])

    for n, _ in enumerate(delays):
        outcome = await shop.settle(billing, event(f"evt-{n}", payload={"n": n}))
        assert outcome.status is Status.RETRY
        assert 0 <= outcome.delay_seconds <= 366 * 86_400
        assert shop.attempts(f"evt-{n}")


@stored
async def test_a_retry_waits_for_its_time_behind_others(shop: Shop) -> None:
    billing = shop.consumer(retry=ONCE_MORE)
    raising(shop, billing, Retry("later", after=3600))
    await shop.deliver(billing, event("first"))
    await shop.deliver(billing, event("second"))

    settled = await shop.work_off(billing)

    assert [(item.message.id, item.outcome and item.outcome.status) for item in settled] == [
        ("first", "retry"),
        ("second", "processed"),
    ]
    assert (await shop.deliver(billing, event("first"))).status is Status.WAITING


async def test_a_handler_that_exits_fails_its_message_and_not_the_worker(shop: Shop) -> None:
    billing = shop.consumer(retry=ONCE_MORE)

    @shop.handler(billing)
    async def leaves(call: Call) -> None:
        await call.db.effect(call.message.id)
        raise SystemExit(3)

    outcome = await shop.settle(billing, event())
    assert outcome.status is Status.RETRY
    assert shop.attempts("evt-1")[0][2] == "oncebox.errors.HandlerExit"
    assert not shop.effects()


async def test_a_failure_of_one_message_does_not_touch_the_next(shop: Shop) -> None:
    billing = shop.consumer(retry=ONCE_MORE)
    raising(shop, billing, ValueError("no"))
    outcomes = await shop.settle_all(billing, [event("bad"), event("good-1"), event("good-2")])
    assert [outcomes[key][0].status for key in ("bad", "good-1", "good-2")] == [
        "retry",
        "processed",
        "processed",
    ]
    assert shop.effects() == {"good-1": 1, "good-2": 1} | ({"bad": 1} if shop.mode == "stored" else {})


async def test_an_error_whose_text_can_not_be_made_is_recorded_all_the_same(shop: Shop) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    billing = shop.consumer(retry=ONCE_MORE)
    raising(shop, billing, Odd())
    assert (await shop.settle(billing, event())).status is Status.RETRY
    assert "can't be shown" in shop.attempts("evt-1")[0][3]


async def test_error_text_that_no_database_takes_is_recorded_all_the_same(shop: Shop) -> None:
    billing = shop.consumer(retry=ONCE_MORE)
    raising(shop, billing, ValueError("nul \0 and a lone \ud800 and 'quotes' \\ and " + "x" * 100_000))
    assert (await shop.settle(billing, event())).status is Status.RETRY
    text = shop.attempts("evt-1")[0][3]
    assert "'quotes' \\" in text
    assert len(text) <= 2_000


@on("sqlite")
async def test_a_cursor_that_the_handler_closed_is_its_own_failure_and_no_loss_of_the_database(
    shop: Shop,
) -> None:
    billing = shop.consumer(retry=ONCE_MORE)

    @shop.handler(billing)
    async def confused(call: Call) -> None:
        await call.db.effect(call.message.id)
        cursor = call.db.raw.execute("SELECT 1")
        cursor.close()
        cursor.fetchone()

    outcome = await shop.settle(billing, event())
    assert outcome.status == Status.RETRY
    assert isinstance(outcome.error, sqlite3.ProgrammingError)
    assert [kind for _, _, kind, _, _ in shop.attempts("evt-1")] == ["sqlite3.ProgrammingError"]
    assert not shop.effects()
