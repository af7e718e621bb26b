"""Retention: what is past its window goes, and nothing else ever does."""

from types import SimpleNamespace
from typing import Any

import pytest

from oncebox import Backoff, Dead, Status
from oncebox.brokers.memory import Memory
from oncebox.core import sweep
from oncebox.core.audit import Act
from oncebox.core.dead import Choice, decide
from oncebox.policy import Policy
from oncebox.runtime.sweeper import Sweeper, window_seconds
from tests.core.fixtures import inline, stored
from tests.core.kit import Call, Shop, effect, event
from tests.order.lines import BY_KEY, case, note, put

WINDOW = 10 * 86_400.0
DAY = 86_400.0


def age(shop: Shop, days: float, table: str = "ledger", where: str = "1=1") -> None:
    """Have everything in a table happened so many days earlier."""
    columns = {
        "ledger": ("received", "finished", "again"),
        "low": ("at",),
        "sweep": ("passed", "cutoff"),
        "key": ("touched",),
    }
    for column in columns[table]:
        earlier = (
            f"{column} - {int(days * DAY * 1_000_000)}"
            if shop.kind.engine == "sqlite"
            else f"{column} - interval '{days * DAY} seconds'"
        )
        shop.rows(
            f"UPDATE {shop.table(table)} SET {column} = {earlier} WHERE {where} AND {column} IS NOT NULL"
        )


async def walk(shop: Shop, consumer: Any, holder: str = "me") -> int:
    """A whole walk; how many rows it deleted."""
    sweeper = Sweeper(shop.app.database, [consumer], holder)
    for _ in range(50):
        if await sweeper.cycle(rest_seconds=0.0):
            return sum(sweeper.counts.values())
    raise AssertionError("the walk does not end")


def marked(shop: Shop, consumer: Any, days: float) -> None:
    """A mark of so many days ago, when nothing waited."""
    top = shop.rows(f"SELECT coalesce(max(seq), 0) + 1 FROM {shop.table('ledger')}")[0][0]
    now = (
        "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"
        if shop.kind.engine == "sqlite"
        else "now()"
    )
    shop.rows(f"INSERT INTO {shop.table('low')} (consumer, at, seq) VALUES ('{consumer.name}', {now}, {top})")
    age(shop, days, "low")


async def test_what_is_past_its_window_goes_and_what_is_not_stays(shop: Shop) -> None:
    billing = shop.consumer(retention=WINDOW)
    shop.handler(billing)(effect)
    for n in range(5):
        await shop.settle(billing, event(f"old-{n}"))
    age(shop, 12)
    marked(shop, billing, 11)
    for n in range(3):
        await shop.settle(billing, event(f"new-{n}"))
    sweeper = Sweeper(shop.app.database, [billing], "me")
    assert await sweeper.count() == {"billing": 5}
    assert shop.count("ledger") == 8, "counting deletes nothing"
    assert await walk(shop, billing) == 5
    assert shop.count("ledger") == shop.count("result") == 3
    assert (await shop.deliver(billing, event("new-1"))).status is Status.DUPLICATE


async def test_the_window_counts_from_the_end_not_from_the_arrival(shop: Shop) -> None:
    billing = shop.consumer(retention=WINDOW)
    shop.handler(billing)(effect)
    await shop.deliver(billing, event())
    # It arrived long ago; whether it was finished then, only an inline row could say.
    age(shop, 12, where="finished IS NULL")
    assert await walk(shop, billing) == 0
    await shop.work_off(billing)
    assert shop.effects()["evt-1"] == 1
    assert await walk(shop, billing) == 0
    assert (await shop.deliver(billing, event())).status is Status.DUPLICATE


@stored
async def test_a_stored_message_that_waited_within_the_window_stays(shop: Shop) -> None:
    billing = shop.consumer(retention=WINDOW)
    shop.handler(billing)(effect)
    await shop.deliver(billing, event())
    age(shop, 30)
    marked(shop, billing, 29)
    # Five days ago it still waited, and a mark says so.
    seq = shop.rows(f"SELECT seq FROM {shop.table('queue')}")[0][0]
    marked(shop, billing, 5)
    shop.rows(f"UPDATE {shop.table('low')} SET seq = {seq} WHERE seq > {seq}")
    await shop.work_off(billing)
    assert await walk(shop, billing) == 0


async def test_what_waits_is_dead_or_unfinished_is_never_touched(shop: Shop) -> None:
    billing = shop.consumer(retention=WINDOW, retry=Backoff(base_seconds=3600.0))

    @shop.handler(billing)
    async def fails(call: Call) -> None:
        raise Dead("no")

    await shop.settle(billing, event("dead"))
    if shop.mode == "stored":
        await shop.deliver(billing, event("waiting"))
    shop.rows(
        f"INSERT INTO {shop.table('ledger')} (consumer, source, message_id, type, fingerprint, received, finished, "
        f"state) SELECT consumer, source, 'unfinished', type, fingerprint, received, received, 1 "
        f"FROM {shop.table('ledger')} WHERE message_id = 'dead'"
    )
    rows = shop.count("ledger")
    age(shop, 50)
    marked(shop, billing, 40)
    assert await walk(shop, billing) == 0
    assert shop.count("ledger") == rows


@pytest.mark.parametrize("order", [None, "key"])
async def test_a_redriven_message_has_its_window_again(shop: Shop, order: Any) -> None:
    """And its first receipt stays what it was."""
    billing, broken = shop.consumer(retention=WINDOW, order_by=order), [True]

    @shop.handler(billing)
    async def fails_at_first(call: Call) -> Any:
        if broken[0]:
            raise Dead("no")
        return await effect(call)

    await shop.settle(billing, event(key="k"))
    age(shop, 50)
    marked(shop, billing, 40)
    received = shop.rows(f"SELECT received FROM {shop.table('ledger')}")
    broken[0] = False
    act = Act(verb="dead redrive", who="me", reason="fixed")
    await shop.perform(billing, lambda work: decide(shop.app.database.queries, "redrive", Choice(), act))
    await shop.work_off(billing)
    assert await walk(shop, billing) == 0
    assert (await shop.deliver(billing, event(key="k"))).status is Status.DUPLICATE
    assert shop.rows(f"SELECT received FROM {shop.table('ledger')}") == received


async def test_a_clock_that_jumps_a_month_ahead_erases_nothing_of_the_window(shop: Shop) -> None:
    billing = shop.consumer(retention=WINDOW)
    shop.handler(billing)(effect)
    await shop.settle(billing, event())
    await walk(shop, billing)
    # Everything that was written is thirty days back: as if the clock were thirty days ahead.
    for table in ("ledger", "sweep", "low"):
        age(shop, 30, table)
    marked(shop, billing, 29)
    assert await walk(shop, billing) == 0
    assert shop.count("ledger") == 1


async def test_one_walks_at_a_time_and_a_lost_lease_deletes_nothing(shop: Shop) -> None:
    billing = shop.consumer(retention=WINDOW)
    shop.handler(billing)(effect)
    await shop.settle(billing, event())
    age(shop, 50)
    marked(shop, billing, 40)
    queries, windows = shop.app.database.queries, {billing.name: WINDOW}

    async def ask(op: Any) -> Any:
        return await shop.perform(billing, lambda work: op)

    mine = await ask(sweep.begin_walk(queries, "me"))
    assert mine is not None
    assert await ask(sweep.begin_walk(queries, "other")) is None
    age_lease = "until = 0" if shop.kind.engine == "sqlite" else "until = '-infinity'"
    shop.rows(f"UPDATE {shop.table('sweep')} SET {age_lease}")
    assert await ask(sweep.begin_walk(queries, "other")) is not None
    assert await ask(sweep.sweep_step(queries, windows, mine, "me", 1000)) is None
    assert shop.count("ledger") == 1


@inline
async def test_attempts_and_results_go_with_their_message(shop: Shop) -> None:
    billing = shop.consumer(retention=WINDOW, retry=Backoff(attempts=3, base_seconds=0.0))
    failures = iter([True])

    @shop.handler(billing)
    async def fails_once(call: Call) -> Any:
        if next(failures, False):
            raise RuntimeError
        return await effect(call)

    await shop.deliver(billing, event())
    await shop.deliver(billing, event())
    assert (shop.count("attempt"), shop.count("result")) == (1, 1)
    age(shop, 50)
    assert await walk(shop, billing) == 1
    assert (shop.count("attempt"), shop.count("result")) == (0, 0)


@stored
async def test_lanes_that_nobody_uses_are_forgotten(shop: Shop) -> None:
    cases = shop.consumer(retention=WINDOW, **BY_KEY)
    shop.handler(cases)(note)
    await put(shop, cases, case("a", 1))
    await shop.deliver(cases, case("b", 1))
    age(shop, 50, "key")
    await walk(shop, cases)
    assert shop.rows(f"SELECT key FROM {shop.table('key')}") == [("b",)]


def test_the_window_follows_the_source_unless_somebody_says_otherwise() -> None:
    bounded: Any = SimpleNamespace(in_process=False, redelivery_horizon_seconds=60 * DAY)
    assert window_seconds(Policy(), bounded) == 60 * DAY
    bounded.redelivery_horizon_seconds = 60
    assert window_seconds(Policy(), bounded) == 30 * DAY
    assert window_seconds(Policy(retention_seconds=120.0), bounded) == 120.0
    bounded.redelivery_horizon_seconds = None
    assert window_seconds(Policy(), bounded) is None
    assert window_seconds(Policy(), Memory().queue("b")) == window_seconds(Policy(), None) == 30 * DAY


@pytest.fixture(autouse=True)
def _clean(request: pytest.FixtureRequest) -> None:
    """The shared database's walk starts anew for every test."""
    if "shop" in request.fixturenames:
        shop: Shop = request.getfixturevalue("shop")
        shop.rows(f"DELETE FROM {shop.table('sweep')}")
        shop.rows(f"INSERT INTO {shop.table('sweep')} (name) VALUES ('ledger')")
