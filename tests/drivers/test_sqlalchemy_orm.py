"""The app's own sessions in handlers: what they write is committed with the claim, once."""

from typing import Any

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from oncebox import Backoff, Dead, Discard, Status
from oncebox.errors import ConfigError
from tests.core.fixtures import inline, on
from tests.core.kit import Call, event
from tests.drivers.orm import Account, OrmShop, make_engine, make_sessions

RETRY = Backoff(attempts=2, base_seconds=0)


async def _get(call: Call, name: str) -> Any:
    found = call.db.raw.get(Account, name)
    return await found if call.db.kind.is_async else found


async def _credit(call: Call) -> None:
    """A read, then a change that only a flush writes down."""
    name = call.payload["name"]
    account = await _get(call, name)
    if account is None:
        account = Account(name=name, balance=0)
        call.db.raw.add(account)
    account.balance += 1


async def test_objects_are_flushed_and_committed_once(shop: OrmShop) -> None:
    billing = shop.consumer()
    shop.handler(billing)(_credit)
    message = event(payload={"name": "ann"})

    assert (await shop.settle(billing, message)).status is Status.PROCESSED
    assert (await shop.deliver(billing, message)).status is Status.DUPLICATE
    assert shop.balances() == {"ann": 1}


async def test_a_query_sees_what_is_pending(shop: OrmShop) -> None:
    billing = shop.consumer()

    @shop.handler(billing)
    async def looks(call: Call) -> list[str]:
        call.db.raw.add(Account(name="ann"))
        found = call.db.raw.scalars(select(Account.name))
        return list(await found if call.db.kind.is_async else found)

    outcome = await shop.settle(billing, event())

    assert (outcome.status, outcome.result) == (Status.PROCESSED, ["ann"])


async def test_every_handler_of_a_batch_reads_what_the_one_before_it_wrote(shop: OrmShop) -> None:
    billing = shop.consumer(batch=10)
    shop.handler(billing)(_credit)

    await shop.settle_all(billing, [event(f"evt-{n}", payload={"name": "ann"}) for n in range(10)])

    assert shop.balances() == {"ann": 10}


async def test_a_failing_flush_is_charged_to_its_own_message_only(shop: OrmShop) -> None:
    billing = shop.consumer(batch=10, retry=Backoff(attempts=1))

    @shop.handler(billing, "paid")
    async def adds(call: Call) -> None:
        call.db.raw.add(Account(name=call.payload["name"]))

    messages = [event(f"evt-{n}", payload={"name": f"a{n}"}) for n in range(6)]
    messages.insert(3, event("clash", payload={"name": "a0"}))
    outcomes = await shop.settle_all(billing, messages)

    assert [outcome.status for outcome in outcomes["clash"]] == [Status.DEAD]
    assert [(row[0], row[2]) for row in shop.dead()] == [("clash", "sqlalchemy.exc.IntegrityError")]
    processed = {identity for identity, found in outcomes.items() if found[-1].status is Status.PROCESSED}
    assert processed == {f"evt-{n}" for n in range(6)}
    assert shop.balances() == {f"a{n}": 0 for n in range(6)}


async def test_a_list_handler_gets_a_session_for_them_all(shop: OrmShop) -> None:
    billing = shop.consumer(batch=10)

    @shop.batch_handler(billing)
    async def adds(call: Call) -> None:
        call.db.raw.add_all([Account(name=payload["name"]) for payload in call.payload])

    await shop.settle_all(billing, [event(f"evt-{n}", payload={"name": f"a{n}"}) for n in range(5)])

    assert shop.balances() == {f"a{n}": 0 for n in range(5)}


async def test_a_failing_handler_leaves_nothing_and_is_counted(shop: OrmShop) -> None:
    billing = shop.consumer(retry=RETRY)

    @shop.handler(billing)
    async def fails(call: Call) -> None:
        call.db.raw.add(Account(name="ann"))
        await call.db.do("flush")  # type: ignore[attr-defined]
        raise LookupError("no such order")

    first = await shop.settle(billing, event())
    second = await shop.settle(billing, event())

    assert (first.status, second.status, second.reason) == (Status.RETRY, Status.DEAD, "exhausted")
    assert [kind for _, _, kind, _, _ in shop.attempts("evt-1")] == ["LookupError", "LookupError"]
    assert not shop.balances()


@pytest.mark.parametrize(("signal", "status"), [(Dead("no"), Status.DEAD), (Discard("no"), Status.DISCARDED)])
async def test_a_handler_decides_the_fate_of_its_message(
    shop: OrmShop, signal: Exception, status: Status
) -> None:
    billing = shop.consumer()

    @shop.handler(billing)
    async def decides(call: Call) -> None:
        call.db.raw.add(Account(name="ann"))
        raise signal

    assert (await shop.settle(billing, event())).status is status
    assert (await shop.deliver(billing, event())).status is status
    assert not shop.balances()


async def test_an_error_out_of_the_flush_is_the_handlers(shop: OrmShop) -> None:
    shop.rows("INSERT INTO account (name) VALUES ('ann')")
    billing = shop.consumer(retry=RETRY)

    @shop.handler(billing)
    async def clashes(call: Call) -> None:
        call.db.raw.add(Account(name="ann"))

    outcome = await shop.settle(billing, event())

    assert outcome.status is Status.RETRY
    assert isinstance(outcome.error, IntegrityError)


@inline
async def test_a_handler_that_needs_no_session_gets_none(shop: OrmShop) -> None:
    billing = shop.consumer()
    if shop.kind.is_async:

        @billing.handler()
        async def waits(payload: dict[str, int]) -> int:
            return payload["n"] + 1
    else:

        @billing.handler()
        def blocks(payload: dict[str, int]) -> int:
            return payload["n"] + 1

    assert (await shop.settle(billing, event(payload={"n": 1}))).result == 2


class Mine(Session):
    """An app's own kind of session."""


class MineAsync(AsyncSession):
    """The same, async."""


@inline
async def test_sessions_are_of_the_apps_own_making(shop: OrmShop) -> None:
    mine: type = MineAsync if shop.kind.is_async else Mine
    sessions = make_sessions(shop.engine, class_=mine, autoflush=False, info={"tenant": 7})
    shop = OrmShop(shop.kind.name, shop._url, engine=shop.engine, sessions=sessions)
    billing = shop.consumer()

    @shop.handler(billing)
    async def looks(call: Call) -> list[Any]:
        return [type(call.db.raw).__name__, call.db.raw.autoflush, call.db.raw.info["tenant"]]

    assert (await shop.settle(billing, event())).result == [mine.__name__, False, 7]
    await shop.close()


@inline
async def test_an_engine_gives_sessions_and_connections_too(shop: OrmShop) -> None:
    shop = OrmShop(shop.kind.name, shop._url, engine=shop.engine, sessions=shop.engine)
    billing = shop.consumer()
    shop.handler(billing, "session")(_credit)
    shop.with_connections()

    @shop.handler(billing, "connection")
    async def credit_ten(call: Call) -> None:
        await call.db.run("UPDATE account SET balance = balance + 10 WHERE name = ?", call.payload["name"])

    for kind in ("session", "connection"):
        outcome = await shop.settle(billing, event(kind, type=kind, payload={"name": "ann"}))
        assert outcome.status is Status.PROCESSED
    assert shop.balances() == {"ann": 11}
    await shop.close()


@inline
@on("pysqlite", "psycopg")
async def test_a_session_that_goes_elsewhere_is_refused(shop: OrmShop) -> None:
    elsewhere = make_engine(shop.kind, shop._url)

    class Straying(Session):
        def get_bind(self, mapper: Any = None, **words: Any) -> Any:
            return elsewhere if mapper is not None else super().get_bind(mapper, **words)

    sessions = make_sessions(shop.engine, class_=Straying)
    shop = OrmShop(shop.kind.name, shop._url, engine=shop.engine, sessions=sessions)
    billing = shop.consumer()
    shop.handler(billing)(_credit)

    outcome = await shop.settle(billing, event(payload={"name": "ann"}))

    assert isinstance(outcome.error, ConfigError)
    assert "another connection than the claim's" in str(outcome.error)
    assert not shop.balances()
    await shop.close()
    assert elsewhere.pool.checkedout() == 0  # type: ignore[attr-defined]
    elsewhere.dispose()


@inline
async def test_the_apps_own_listeners_still_hear_its_connections(shop: OrmShop) -> None:
    heard: list[str] = []
    engine = getattr(shop.engine, "sync_engine", shop.engine)
    sqlalchemy_event.listen(engine, "begin", lambda connection: heard.append("begin"))
    sqlalchemy_event.listen(engine, "commit", lambda connection: heard.append("commit"))
    billing = shop.consumer()
    shop.handler(billing)(_credit)

    await shop.settle(billing, event(payload={"name": "ann"}))

    assert heard[-2:] == ["begin", "commit"]


@inline
@on("psycopg", "psycopg-async", "asyncpg")
async def test_the_apps_own_connections_may_commit_meanwhile(shop: OrmShop) -> None:
    billing = shop.consumer()

    @shop.handler(billing)
    async def audits(call: Call) -> None:
        if shop.kind.is_async:
            async with make_sessions(shop.engine).begin() as other:
                other.add(Account(name="audit"))
        else:
            with make_sessions(shop.engine).begin() as other:
                other.add(Account(name="audit"))
        await _credit(call)

    assert (await shop.settle(billing, event(payload={"name": "ann"}))).status is Status.PROCESSED
    assert shop.balances() == {"audit": 0, "ann": 1}
