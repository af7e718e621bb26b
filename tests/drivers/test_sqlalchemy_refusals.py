"""A handler that commits, rolls back, closes or swallows an error through SQLAlchemy: nothing of it
persists, it is reported, and it is never processed."""

import contextlib
from contextlib import nullcontext

import pytest
from sqlalchemy.exc import InvalidRequestError

from oncebox import Backoff, Outcome, Status
from oncebox.errors import DatabaseUnavailable, OnceboxError, TransactionError
from tests.core.fixtures import inline, stored
from tests.core.kit import Call, effect, event
from tests.drivers.deeds import CASES, Deed
from tests.drivers.orm import OrmShop

EACH = pytest.mark.parametrize(
    ("kind", "handle", "deed"), CASES, indirect=["kind"], ids=lambda part: getattr(part, "name", part)
)
RETRY = Backoff(attempts=2, base_seconds=0)
GOOD = {f"good-{n}" for n in range(4)}


def asking_for(shop: OrmShop, handle: str) -> OrmShop:
    if handle == "connection":
        shop.with_connections()
    return shop


def is_refused(outcome: Outcome) -> bool:
    """By us; or by SQLAlchemy, which begins nothing twice."""
    refusal = isinstance(outcome.error, (TransactionError, InvalidRequestError))
    return refusal and outcome.status in (Status.RETRY, Status.DEAD)


@inline
@EACH
async def test_it_is_reported_and_nothing_of_it_persists(shop: OrmShop, handle: str, deed: Deed) -> None:
    billing = asking_for(shop, handle).consumer(retry=RETRY)

    @shop.handler(billing, "paid")
    async def ends(call: Call) -> None:
        await call.db.effect(call.message.id, "before")
        await deed.do(call.db)  # type: ignore[arg-type]

    shop.handler(billing, "good")(effect)
    outcome = await shop.settle(billing, event())

    assert is_refused(outcome), outcome
    assert not shop.effects()
    assert not shop.balances()
    assert len(shop.attempts("evt-1")) == 1
    assert shop.checked_out() == 0
    # The next one to get the connection is none the worse for it.
    assert (await shop.settle(billing, event("good-1", type="good"))).status is Status.PROCESSED
    assert shop.effects() == {"good-1": 1}


@stored
@EACH
async def test_what_it_does_afterwards_does_not_persist(shop: OrmShop, handle: str, deed: Deed) -> None:
    billing = asking_for(shop, handle).consumer(retry=RETRY)

    @shop.handler(billing)
    async def goes_on(call: Call) -> None:
        await deed.do(call.db)  # type: ignore[arg-type]
        await call.db.effect(call.message.id, "after")

    outcome = await shop.settle(billing, event())

    assert outcome.status in (Status.RETRY, Status.DEAD), outcome
    assert not shop.effects()


@inline
@EACH
async def test_in_a_batch_its_neighbours_take_effect_once(shop: OrmShop, handle: str, deed: Deed) -> None:
    billing = asking_for(shop, handle).consumer(batch=10, retry=RETRY)

    @shop.handler(billing, "paid")
    async def ends(call: Call) -> None:
        await call.db.effect(call.message.id, "before")
        await deed.do(call.db)  # type: ignore[arg-type]

    shop.handler(billing, "good")(effect)
    messages = [event(identity, type="good") for identity in sorted(GOOD)]
    messages.insert(2, event())

    outcomes = await shop.settle_all(billing, messages)

    assert outcomes["evt-1"]
    assert all(is_refused(outcome) for outcome in outcomes["evt-1"]), outcomes["evt-1"]
    assert {identity for identity, found in outcomes.items() if found[-1].status is Status.PROCESSED} == GOOD
    assert shop.effects() == dict.fromkeys(GOOD, 1)


async def nested(call: Call, note: str, error: Exception | None) -> None:
    """An effect in a savepoint."""
    async with call.db.raw.begin_nested() if call.db.kind.is_async else nullcontext():
        with nullcontext() if call.db.kind.is_async else call.db.raw.begin_nested():
            await call.db.effect(call.message.id, note)
            if error is not None:
                raise error


@inline
@pytest.mark.parametrize("handle", ["session", "connection"])
async def test_a_savepoint_of_the_handlers_own_is_fine(shop: OrmShop, handle: str) -> None:
    billing = asking_for(shop, handle).consumer()

    @shop.handler(billing)
    async def careful(call: Call) -> None:
        await call.db.effect(call.message.id, "before")
        with contextlib.suppress(ZeroDivisionError):
            await nested(call, "undone", ZeroDivisionError())
        await nested(call, "nested", None)

    assert (await shop.settle(billing, event())).status is Status.PROCESSED
    assert shop.notes() == ["before", "nested"]


@inline
@pytest.mark.parametrize("handle", ["session", "connection"])
async def test_a_savepoint_that_was_forgotten_is_committed_with_the_rest(shop: OrmShop, handle: str) -> None:
    billing = asking_for(shop, handle).consumer(batch=3)

    @shop.handler(billing)
    async def careless(call: Call) -> None:
        reply = call.db.raw.begin_nested()
        if call.db.kind.is_async:
            await reply
        await call.db.effect(call.message.id)

    await shop.settle_all(billing, [event(f"evt-{n}") for n in range(3)])

    assert shop.effects() == {f"evt-{n}": 1 for n in range(3)}


@inline
async def test_an_error_names_no_values(shop: OrmShop) -> None:
    billing = shop.consumer(retry=RETRY)

    @shop.handler(billing)
    async def clashes(call: Call) -> None:
        for _ in range(2):
            await call.db.run("INSERT INTO account (name) VALUES (?)", call.payload["name"])

    outcome = await shop.settle(billing, event(payload={"name": "canary"}))

    assert outcome.status is Status.RETRY
    assert not isinstance(outcome.error, (OnceboxError, DatabaseUnavailable))
    [(_, _, kind, message, traceback)] = shop.attempts("evt-1")
    assert kind == "sqlalchemy.exc.IntegrityError"
    assert "canary" not in message + traceback
