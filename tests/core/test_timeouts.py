"""Time limits: a handler past its time is rolled back and counted; a claim held elsewhere is not."""

import asyncio
import threading
from typing import Any

from oncebox import Backoff, Status
from oncebox.core.outcomes import Answer
from oncebox.errors import HandlerTimeout, LockBusy
from tests.core.fixtures import inline, on, postgresql, sqlite
from tests.core.kit import Call, Shop, effect, event

ASYNC = on("sqlite-async", "psycopg-async", "asyncpg")
SLOW_SQLITE = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def _is_timeout(shop: Shop) -> None:
    ((_, _, kind, text, _),) = shop.attempts("evt-1")
    assert kind == "oncebox.errors.HandlerTimeout"
    assert "evt-1" in text
    assert not shop.effects()


@ASYNC
async def test_a_handler_that_waits_too_long_is_rolled_back_and_counted(shop: Shop) -> None:
    billing = shop.consumer(timeout_seconds=0.05, retry=Backoff(attempts=2, base_seconds=0))

    @shop.handler(billing)
    async def waits(call: Call) -> None:
        await call.db.effect(call.message.id)
        await asyncio.Event().wait()

    outcome = await shop.settle(billing, event())
    assert outcome.status is Status.RETRY
    assert isinstance(outcome.error, HandlerTimeout)
    _is_timeout(shop)
    assert (await shop.settle(billing, event(deliveries=2))).reason == "exhausted"


@postgresql
async def test_a_statement_that_runs_too_long_is_cancelled_and_counted(shop: Shop) -> None:
    billing = shop.consumer(timeout_seconds=1.0, retry=Backoff(attempts=20, base_seconds=0))

    seconds = iter((60, 0))

    @shop.handler(billing, "paid")
    async def sleeps(call: Call) -> None:
        await call.db.effect(call.message.id)
        await call.db.run(f"SELECT pg_sleep({next(seconds, 0)})")

    shop.handler(billing, "good")(effect)
    outcome = await shop.settle(billing, event())
    assert isinstance(outcome.error, HandlerTimeout)
    _is_timeout(shop)
    following = await shop.settle(billing, event("next", type="good"))
    while following.status is Status.RETRY and isinstance(following.error, HandlerTimeout):  # a busy machine
        following = await shop.settle(billing, event("next", type="good"))
    assert following.status is Status.PROCESSED


@on("sqlite")
async def test_a_statement_that_runs_too_long_is_interrupted_and_counted(shop: Shop) -> None:
    billing = shop.consumer(timeout_seconds=0.2)

    @shop.handler(billing)
    async def counts(call: Call) -> None:
        await call.db.effect(call.message.id)
        await call.db.run(SLOW_SQLITE)

    outcome = await shop.settle(billing, event())
    assert isinstance(outcome.error, HandlerTimeout)
    _is_timeout(shop)


@on("sqlite")
async def test_a_culprit_that_holds_a_cursor_open_is_charged_alone_and_its_batch_goes_on(shop: Shop) -> None:
    billing = shop.consumer(
        timeout_seconds=3.0, batch=3
    )  # in which "good" is done, however busy the machine is
    held: list[Any] = []

    @shop.handler(billing, "slow")
    async def counts(call: Call) -> None:
        await call.db.effect(call.message.id)
        held.append(call.db.raw.execute("SELECT name FROM sqlite_master"))  # as a cache or a traceback may
        held[-1].fetchone()
        await call.db.run(SLOW_SQLITE)

    shop.handler(billing, "good")(effect)
    sent = [event("a", type="good"), event("slow", type="slow"), event("b", type="good")]
    outcomes = await shop.settle_all(billing, sent)
    assert [outcomes[key][0].status for key in ("a", "slow", "b")] == ["processed", "retry", "processed"]
    assert shop.effects() == {"a": 1, "b": 1}
    assert [attempt[2] for attempt in shop.attempts("slow")] == ["oncebox.errors.HandlerTimeout"]


@on("sqlite", "psycopg")
async def test_a_blocking_handler_that_returns_too_late_is_refused(shop: Shop) -> None:
    billing = shop.consumer(timeout_seconds=0.05)

    @shop.handler(billing)
    async def dawdles(call: Call) -> None:
        await call.db.effect(call.message.id)
        threading.Event().wait(0.1)

    outcome = await shop.settle(billing, event())
    assert isinstance(outcome.error, HandlerTimeout)
    _is_timeout(shop)


async def test_a_handlers_own_timeout_error_is_its_own(shop: Shop) -> None:
    billing = shop.consumer()

    @shop.handler(billing)
    async def gives_up(call: Call) -> None:
        raise TimeoutError("the bank did not answer")

    outcome = await shop.settle(billing, event())
    assert type(outcome.error) is TimeoutError
    assert shop.attempts("evt-1")[0][2] == "TimeoutError"


@inline
async def test_a_claim_that_is_held_elsewhere_is_in_flight_and_uncharged(shop: Shop) -> None:
    billing = shop.consumer(lock_timeout_seconds=0.1)
    gate = shop.gate()

    @shop.handler(billing)
    async def holds(call: Call) -> None:
        await call.db.effect(call.message.id)
        await gate.wait()

    holder = asyncio.ensure_future(shop.deliver(billing, event()))
    await gate.reached_by_somebody()
    outcome = await shop.deliver(billing, event())
    gate.open()

    assert (outcome.status, outcome.answer) == (Status.IN_FLIGHT, Answer.NACK)
    assert isinstance(outcome.error, LockBusy)
    assert outcome.delay_seconds > 0
    assert (await holder).status is Status.PROCESSED
    assert shop.attempts("evt-1") == []
    assert shop.effects() == {"evt-1": 1}


@inline
@sqlite
async def test_a_writer_in_another_process_is_waited_for_and_not_for_ever(shop: Shop) -> None:
    billing = shop.consumer(lock_timeout_seconds=0.1)
    shop.handler(billing)(effect)
    await shop.deliver(billing, event("first"))
    shop.rows("BEGIN IMMEDIATE")
    outcome = await shop.deliver(billing, event())
    shop.rows("ROLLBACK")

    assert outcome.status is Status.IN_FLIGHT
    assert (await shop.deliver(billing, event())).status is Status.PROCESSED
    assert shop.attempts("evt-1") == []


@inline
@postgresql
async def test_a_lock_timeout_in_the_handlers_own_statement_is_its_failure(shop: Shop) -> None:
    billing = shop.consumer(lock_timeout_seconds=0.1)
    shop.rows("INSERT INTO shop_effect VALUES ('row', '')")

    @shop.handler(billing)
    async def updates(call: Call) -> None:
        await call.db.run("UPDATE shop_effect SET note = 'mine'")

    shop.rows("BEGIN")
    shop.rows("UPDATE shop_effect SET note = 'held'")
    outcome = await shop.deliver(billing, event())
    shop.rows("ROLLBACK")

    assert outcome.status is Status.RETRY
    assert len(shop.attempts("evt-1")) == 1
