"""Messages that follow each other closely: chained transactions, and batches of several hundred."""

from oncebox.brokers.memory import Memory
from oncebox.engines.sqlite import ROWS_MAX
from tests.core.fixtures import inline, on
from tests.core.kit import Call, Shop, effect, event

MANY = 40
LARGE = 2 * ROWS_MAX + 7


@inline
@on("psycopg", "psycopg-async", "asyncpg")
async def test_a_transaction_that_was_made_read_only_does_not_pass_it_on(shop: Shop) -> None:
    broker = Memory()
    billing = shop.consumer(source=broker.queue("payments"), concurrency=1)

    @shop.handler(billing)
    async def closes(call: Call) -> None:
        await call.db.effect(call.message.id, "once")
        await call.db.run("SET TRANSACTION READ ONLY")

    async with shop.app.running():
        broker.put("payments", *(event(f"evt-{n}") for n in range(MANY)))
        await broker.drained("payments")

    assert shop.effects() == {f"evt-{n}": 1 for n in range(MANY)}
    assert not shop.attempts("evt-1"), "nobody is charged for it"
    assert not shop.dead()


@inline
async def test_a_batch_of_hundreds_claims_each_once_and_names_what_it_knows(shop: Shop) -> None:
    broker = Memory()
    billing = shop.consumer(source=broker.queue("payments"), concurrency=1, batch=LARGE)
    shop.handler(billing)(effect)
    known = [event(f"evt-{n}") for n in range(0, LARGE, 3)]

    async with shop.app.running():
        broker.put("payments", *known)
        await broker.drained("payments")
        broker.put("payments", *(event(f"evt-{n}") for n in range(LARGE)), duplicates=1)
        await broker.drained("payments")

    assert shop.effects() == {f"evt-{n}": 1 for n in range(LARGE)}
    assert shop.count("ledger") == LARGE
    assert broker.stats()["payments"].acked == len(known) + 2 * LARGE
