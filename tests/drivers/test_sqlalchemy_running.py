"""An app on SQLAlchemy at work: sources, workers, the runtime's own connections beside the pool's."""

import asyncio
from typing import Any

import psycopg
import pytest

from oncebox import Backoff, Message, Status
from oncebox.brokers.memory import Memory
from tests.core.fixtures import inline, on, stored
from tests.core.kit import Call, effect, event
from tests.drivers.orm import KINDS, Account, OrmShop, make_engine
from tests.outgoing.kit import put_slots_back
from tests.servers import Postgres
from tests.waiting import eventually_async

POSTGRESQL = on("psycopg", "psycopg-async", "asyncpg")
SQLITE = on("pysqlite", "aiosqlite")
MANY = 100


def messages(count: int = MANY, **words: Any) -> list[Message]:
    return [event(f"evt-{n}", payload={"name": f"a{n}"}, **words) for n in range(count)]


async def _add(call: Call) -> None:
    call.db.raw.add(Account(name=call.payload["name"]))


@pytest.mark.parametrize("policy", [{}, {"batch": 10}], ids=["one by one", "batches"])
async def test_deliveries_take_effect_once(shop: OrmShop, policy: dict[str, Any]) -> None:
    broker = Memory()
    billing = shop.consumer(source=broker.queue("payments"), **policy)
    shop.handler(billing)(_add)

    async with shop.app.running():
        broker.put("payments", *messages(), duplicates=2)
        await broker.drained("payments")
        await eventually_async(lambda: len(shop.balances()) == MANY)

    assert broker.stats()["payments"].acked >= 3 * MANY
    assert shop.checked_out() == 0
    assert shop.count("queue") == 0


async def test_a_failing_message_is_kept_and_the_others_go_on(shop: OrmShop) -> None:
    broker = Memory()
    billing = shop.consumer(
        source=broker.queue("payments"), retry=Backoff(attempts=2, base_seconds=0), batch=5
    )

    @shop.handler(billing)
    async def fails_for_one(call: Call) -> None:
        await _add(call)
        if call.payload["name"] == "a7":
            raise LookupError("no such account")

    async with shop.app.running():
        broker.put("payments", *messages(20))
        await broker.drained("payments")
        await eventually_async(lambda: len(shop.balances()) == 19 and shop.count("dead") == 1)

    assert [row[:3] for row in shop.dead()] == [("evt-7", "exhausted", "LookupError")]
    assert len(shop.attempts("evt-7")) == 2


@inline
@POSTGRESQL
async def test_more_workers_than_the_pool_has_connections_take_turns(shop: OrmShop) -> None:
    engine = make_engine(shop.kind, shop._url, pool_size=2, max_overflow=1)
    shop = OrmShop(shop.kind.name, shop._url, engine=engine)
    broker = Memory()
    billing = shop.consumer(source=broker.queue("payments"), concurrency=16)
    shop.handler(billing)(effect)

    async with shop.app.running():
        broker.put("payments", *messages(), duplicates=1)
        await broker.drained("payments")

    assert shop.effects() == {f"evt-{n}": 1 for n in range(MANY)}
    await shop.close()


@inline
@POSTGRESQL
async def test_sixteen_workers_share_one_hot_row(shop: OrmShop) -> None:
    broker = Memory()
    billing = shop.consumer(source=broker.queue("payments"), concurrency=16)
    shop.rows("INSERT INTO account (name) VALUES ('hot')")

    @shop.handler(billing)
    async def credit_hot(call: Call) -> None:
        found = call.db.raw.get(Account, "hot", with_for_update=True)
        account = await found if shop.kind.is_async else found
        account.balance += 1

    async with shop.app.running():
        broker.put("payments", *messages())
        await broker.drained("payments")

    assert shop.balances() == {"hot": MANY}


@inline
async def test_a_group_shares_one_flush(shop: OrmShop) -> None:
    broker = Memory()
    billing = shop.consumer(source=broker.queue("payments"), durability="group")
    shop.handler(billing)(effect)

    async with shop.app.running():
        broker.put("payments", *messages(300), duplicates=1)
        await broker.drained("payments")

    assert shop.effects() == {f"evt-{n}": 1 for n in range(300)}
    assert shop.rows(f"SELECT count(*) FROM {shop.table('ledger')} WHERE lazy") == [(300,)]


@stored
async def test_a_long_handler_keeps_its_lease(shop: OrmShop) -> None:
    broker = Memory()
    billing = shop.consumer(source=broker.queue("payments"), lease_seconds=3.0)
    gate = shop.gate()

    @shop.handler(billing, "paid", long=True)
    async def slow(call: Call) -> None:
        if shop.kind.engine != "sqlite":
            await gate.wait()
        await call.db.effect(call.message.id)

    async with shop.app.running():
        broker.put("payments", event())
        if shop.kind.engine != "sqlite":
            await gate.reached_by_somebody()
            await asyncio.sleep(4.0)  # longer than the lease, so that only its keeping explains the rest
            gate.open()
        await eventually_async(lambda: shop.count("queue") == 0 and shop.effects() == {"evt-1": 1})
    assert not shop.attempts("evt-1")


@inline
async def test_a_handler_that_runs_late_is_interrupted_and_counted(shop: OrmShop) -> None:
    billing = shop.consumer(timeout_seconds=1.0, retry=Backoff(base_seconds=0))
    runs = 0

    @shop.handler(billing)
    async def late(call: Call) -> None:
        nonlocal runs
        runs += 1
        await call.db.effect(call.message.id)
        if runs == 1:
            await call.db.run(_slow(shop))

    first = await shop.deliver(billing, event())
    second = await shop.deliver(billing, event())

    assert (first.status, second.status) == (Status.RETRY, Status.PROCESSED)
    assert type(first.error).__name__ == "HandlerTimeout"
    assert shop.effects() == {"evt-1": 1}


def _slow(shop: OrmShop) -> str:
    if shop.kind.engine == "postgresql":
        return "SELECT pg_sleep(30)"
    return "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000000) SELECT count(*) FROM n"


@inline
@on("psycopg-async", "asyncpg", "aiosqlite")
async def test_a_cancelled_delivery_leaves_nothing_and_no_connection(shop: OrmShop) -> None:
    billing = shop.consumer()
    gate = shop.gate()

    @shop.handler(billing)
    async def waits(call: Call) -> None:
        await call.db.effect(call.message.id)
        await gate.wait()

    task = asyncio.create_task(billing.process(event()))
    await gate.reached_by_somebody()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert shop.checked_out() == 0
    gate.open()
    assert (await billing.process(event())).status is Status.PROCESSED
    assert shop.effects() == {"evt-1": 1}


@pytest.mark.parametrize("mode", ["inline", "stored"])
@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async", "asyncpg"])
async def test_a_server_that_restarts_costs_nothing_but_time(
    kind: str, mode: str, disposable_postgres: Postgres
) -> None:
    shop = OrmShop(kind, disposable_postgres.create_database(), mode)
    broker = Memory()
    billing = shop.consumer(source=broker.queue("payments", visibility_seconds=60), concurrency=4)
    shop.handler(billing)(effect)

    async with shop.app.running():
        broker.put("payments", *messages(50))
        await broker.drained("payments")
        shop._seen.close()
        shop._seen = None
        await asyncio.to_thread(disposable_postgres.restart)
        broker.put("payments", *messages(100))
        await broker.drained("payments")
        await eventually_async(lambda: shop.effects().total() == 100, 20)

    assert shop.effects() == {f"evt-{n}": 1 for n in range(100)}
    assert not shop.rows("SELECT 1 FROM oncebox.attempt")
    await shop.close()


@inline
@POSTGRESQL
async def test_a_connection_lost_in_a_handler_is_nobodys_failure(shop: OrmShop) -> None:
    broker = Memory()
    billing = shop.consumer(source=broker.queue("payments", visibility_seconds=60), concurrency=1)
    runs = 0

    @shop.handler(billing)
    async def loses(call: Call) -> None:
        nonlocal runs
        runs += 1
        await call.db.effect(call.message.id)
        if runs == 1:
            [(pid,)] = await call.db.run("SELECT pg_backend_pid()")
            with psycopg.connect(shop._url, autocommit=True) as admin:
                admin.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        await call.db.effect(call.message.id)

    async with shop.app.running():
        broker.put("payments", event())
        await broker.drained("payments")

    assert runs == 2
    assert shop.effects() == {"evt-1": 2}
    assert not shop.attempts("evt-1")


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async", "asyncpg"])
async def test_runtime_connections_are_outside_the_pool(kind: str, pg_url: str) -> None:
    engine: Any = make_engine(KINDS[kind], pg_url, pool_size=1, max_overflow=0)
    shop = OrmShop(kind, pg_url, engine=engine)
    broker = Memory()
    billing = shop.consumer(source=broker.queue("payments"), concurrency=2)
    gate = shop.gate()

    @shop.handler(billing)
    async def holds_the_only_connection(call: Call) -> None:
        await gate.wait()
        await call.db.effect(call.message.id)

    def beats() -> Any:
        return shop.rows("SELECT max(heartbeat) FROM oncebox.worker")

    async with shop.app.running():
        broker.put("payments", event())
        await gate.reached_by_somebody()
        before = beats()
        await eventually_async(lambda: beats() > before)
        gate.open()
        await broker.drained("payments")
    await shop.close()


async def test_what_a_handler_sends_and_publishes_is_committed_with_its_objects(
    kind: str, mode: str, shop_url: str
) -> None:
    broker = Memory()
    topic = broker.topic("events")
    shop = OrmShop(kind, shop_url, mode, sink=topic)
    put_slots_back(shop)
    payments, receipts = broker.queue("payments"), broker.queue("receipts")
    broker.bind("events", "receipts")
    billing = shop.consumer("billing", payments)
    mailing = shop.consumer("mailing", receipts)
    ledger = shop.app.consumer("ledger", mode="stored")

    @shop.handler(billing)
    async def paid(call: Call) -> None:
        await _add(call)
        call.tx.publish("receipt", {"name": "r" + call.payload["name"]})
        call.tx.send("ledger", "entry", {"name": "l" + call.payload["name"]})

    shop.handler(mailing)(_add)
    shop.handler(ledger, "entry")(_add)
    async with shop.app.running():
        broker.put("payments", *messages(10), duplicates=1)
        await broker.drained("payments")
        await eventually_async(lambda: len(shop.balances()) == 30, 20)

    assert set(shop.balances()) == {f"{prefix}a{n}" for prefix in ("", "r", "l") for n in range(10)}
    await shop.close()


@POSTGRESQL
@pytest.mark.parametrize("batch", [1, 10])
async def test_a_table_may_change_while_its_readers_run(shop: OrmShop, batch: int) -> None:
    """What was prepared for the table as it was fails once, and no message pays for it."""
    broker = Memory()
    billing = shop.consumer(source=broker.queue("payments"), batch=batch, retry=Backoff(attempts=1))

    @shop.handler(billing)
    async def reads(call: Call) -> None:
        await call.db.run("SELECT * FROM price")
        await _add(call)

    shop.rows("DROP TABLE IF EXISTS price")
    shop.rows("CREATE TABLE price (sku text)")
    async with shop.app.running():
        broker.put("payments", *messages(20))
        await broker.drained("payments")
        await eventually_async(lambda: len(shop.balances()) == 20)  # stored, they are done after their acks
        shop.rows("ALTER TABLE price ADD COLUMN cents int")
        broker.put("payments", *messages(40)[20:])
        await broker.drained("payments")
        await eventually_async(lambda: len(shop.balances()) + shop.count("dead") == 40)
    assert shop.count("dead") == 0
    assert len(shop.balances()) == 40
