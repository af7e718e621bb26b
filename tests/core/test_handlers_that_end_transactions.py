"""A handler that commits, rolls back or swallows an error by itself: nothing of it persists, or it is
reported; it is never processed, and never acked as done."""

import contextlib

import pytest

from oncebox import Backoff, Outcome, Status
from oncebox.errors import TransactionError
from tests.core.deeds import PAIRS, Deed
from tests.core.drivers import Db
from tests.core.fixtures import on
from tests.core.kit import Call, Shop, effect, event

DEEDS = pytest.mark.parametrize(
    ("kind", "deed"), PAIRS, indirect=["kind"], ids=lambda part: getattr(part, "name", part)
)
QUIET_DEEDS = pytest.mark.parametrize(
    ("kind", "deed"),
    [(kind, deed) for kind, deed in PAIRS if deed.leaves_autocommit or "swallowed" in deed.name],
    indirect=["kind"],
    ids=lambda part: getattr(part, "name", part),
)
RETRY = Backoff(attempts=2, base_seconds=0)


def refused(outcome: Outcome) -> bool:
    return outcome.status in (Status.RETRY, Status.DEAD) and isinstance(outcome.error, TransactionError)


@DEEDS
async def test_it_is_reported_every_time_and_nothing_of_it_persists(shop: Shop, deed: Deed) -> None:
    billing = shop.consumer(retry=RETRY)

    @shop.handler(billing)
    async def ends(call: Call) -> None:
        await call.db.effect(call.message.id, "before")
        await deed.do(call.db)

    outcome = await shop.settle(billing, event())

    assert refused(outcome), outcome
    assert not shop.effects()
    attempts = shop.attempts("evt-1")
    assert [kind for _, _, kind, _, _ in attempts] == [f"oncebox.errors.{type(outcome.error).__name__}"]

    for _ in range(2):
        again = await shop.deliver(billing, event())
        assert again.status in (Status.RETRY, Status.DEAD, Status.WAITING), "never acked as done"
        if shop.mode == "stored":
            await shop.work_off(billing)
    assert [identity for identity, *_ in shop.dead()] == ["evt-1"]
    assert shop.count("queue") == 0
    assert not shop.effects()


@DEEDS
async def test_what_it_does_afterwards_is_reported_too(shop: Shop, deed: Deed) -> None:
    billing = shop.consumer(retry=RETRY)

    @shop.handler(billing)
    async def goes_on(call: Call) -> None:
        await deed.do(call.db)
        await call.db.effect(call.message.id, "after")

    outcome = await shop.settle(billing, event())

    assert outcome.status in (Status.RETRY, Status.DEAD)
    assert shop.notes() == (["after"] if deed.leaves_autocommit else [])


@pytest.mark.parametrize("as_list", [False, True], ids=["alone", "list"])
@QUIET_DEEDS
async def test_in_a_batch_one_that_goes_on_is_not_done_because_it_behaves_the_next_time(
    shop: Shop, deed: Deed, as_list: bool
) -> None:
    billing = shop.consumer(batch=10, retry=RETRY)
    misdeeds: list[str] = []

    async def once(call: Call, identity: str) -> None:
        if identity == "evt-1" and not misdeeds:
            misdeeds.append(identity)
            await deed.do(call.db)
        await call.db.effect(identity)

    if as_list:

        @shop.batch_handler(billing, "paid")
        async def goes_on(call: Call) -> None:
            for message in call.message:
                await once(call, message.id)
    else:

        @shop.handler(billing, "paid")
        async def goes_on_alone(call: Call) -> None:
            await once(call, call.message.id)

    messages = [event(f"evt-{n}") for n in range(4)]

    outcomes = await shop.settle_all(billing, messages)
    retried = [message for message in messages if outcomes[message.id][-1].status is Status.RETRY]
    outcomes |= await shop.settle_all(billing, retried)

    done = {identity for identity, found in outcomes.items() if found[-1].status is Status.PROCESSED}
    assert {identity: shop.effects()[identity] for identity in done} == dict.fromkeys(done, 1)
    dead = {identity for identity, *_ in shop.dead()}
    assert done | dead == {message.id for message in messages}
    assert done.isdisjoint(dead)
    if deed.leaves_autocommit:
        assert "evt-1" in dead, "what it wrote stands, so somebody has to look"


@DEEDS
async def test_in_a_batch_its_neighbours_take_effect_once_and_it_does_not(shop: Shop, deed: Deed) -> None:
    billing = shop.consumer(batch=10, retry=RETRY)

    @shop.handler(billing, "paid")
    async def ends(call: Call) -> None:
        await call.db.effect(call.message.id, "before")
        await deed.do(call.db)

    shop.handler(billing, "good")(effect)
    messages = [event(f"good-{n}", type="good") for n in range(4)]
    messages.insert(2, event())

    outcomes = await shop.settle_all(billing, messages)

    assert all(refused(outcome) for outcome in outcomes["evt-1"])
    assert outcomes["evt-1"]
    assert {
        identity: [o.status for o in found] for identity, found in outcomes.items() if identity != "evt-1"
    } == {f"good-{n}": [Status.PROCESSED] for n in range(4)}
    await shop.settle_all(billing, [event("good-4", type="good")])
    assert shop.effects() == {f"good-{n}": 1 for n in range(5)}, "the connection is none the worse"


async def nested(db: Db, key: str, error: Exception | None = None) -> None:
    """A transaction of the handler's own inside the runtime's: a savepoint, as users expect."""
    if db.kind.engine == "sqlite":
        await db.run("SAVEPOINT mine")
        await db.effect(key, "nested")
        await db.run("ROLLBACK TO mine" if error else "RELEASE mine")
        if error:
            raise error
    elif db.kind.is_async:
        async with db.raw.transaction():
            await db.effect(key, "nested")
            if error:
                raise error
    else:
        with db.raw.transaction():
            await db.effect(key, "nested")
            if error:
                raise error


async def test_a_savepoint_of_the_handlers_own_is_fine_and_so_is_an_error_caught_around_it(
    shop: Shop,
) -> None:
    billing = shop.consumer()

    @shop.handler(billing)
    async def careful(call: Call) -> None:
        await call.db.effect(call.message.id, "before")
        with pytest.raises(RuntimeError):
            await nested(call.db, call.message.id, RuntimeError("no stock"))
        await nested(call.db, call.message.id)

    assert (await shop.settle(billing, event())).status is Status.PROCESSED
    assert shop.notes() == ["before", "nested"]


@on("sqlite", "sqlite-async", "psycopg")
async def test_an_error_that_is_undone_by_a_savepoint_is_the_handlers_own_affair(shop: Shop) -> None:
    billing = shop.consumer()

    @shop.handler(billing)
    async def tries(call: Call) -> None:
        await call.db.run("SAVEPOINT mine")
        with contextlib.suppress(Exception):
            await call.db.run("INSERT INTO no_such_table VALUES (1)")
        await call.db.run("ROLLBACK TO SAVEPOINT mine")
        await call.db.effect(call.message.id)

    assert (await shop.settle(billing, event())).status is Status.PROCESSED
    assert shop.effects() == {"evt-1": 1}
