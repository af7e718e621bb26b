"""Several messages in one transaction: a failing one is set aside, its neighbours take effect once."""

from collections import Counter
from typing import Any

import psycopg
import pytest

from oncebox import Backoff, Dead, Status
from oncebox.core.work import Item
from oncebox.runtime.mailbox import ThreadMailbox
from oncebox.runtime.workers import inline_turn
from tests.core.fixtures import inline, on, stored
from tests.core.kit import Call, Shop, effect, event

RETRY = Backoff(attempts=2, base_seconds=0)


def counting(shop: Shop, consumer: Any, bad: set[str], error: type[Exception] = ValueError) -> Counter[str]:
    """A handler that fails on these ids, and counts its runs."""
    runs: Counter[str] = Counter()

    @shop.handler(consumer)
    async def counted(call: Call) -> str:
        runs[call.message.id] += 1
        await call.db.effect(call.message.id)
        if call.message.id in bad:
            raise error(call.message.id)
        return str(call.message.id)

    return runs


async def test_a_batch_is_one_transaction_and_each_message_keeps_its_result(shop: Shop) -> None:
    billing = shop.consumer(batch=100)
    transactions = set()

    @shop.handler(billing)
    async def noted(call: Call) -> str:
        if shop.kind.engine == "postgresql":
            ((xid,),) = await call.db.run("SELECT pg_current_xact_id()::text")
            transactions.add(xid)
        await call.db.effect(call.message.id)
        return str(call.message.id)

    messages = [event(f"evt-{n}") for n in range(100)]
    outcomes = await shop.settle_all(billing, messages)

    assert {identity: [o.result for o in found] for identity, found in outcomes.items()} == {
        message.id: [message.id] for message in messages
    }
    assert len(transactions) == (1 if shop.kind.engine == "postgresql" else 0)
    assert shop.effects() == {message.id: 1 for message in messages}
    assert (await shop.deliver(billing, messages[42])).result == "evt-42"


async def test_one_failing_in_a_hundred_costs_its_neighbours_at_most_one_more_run(shop: Shop) -> None:
    billing = shop.consumer(batch=100, retry=RETRY)
    runs = counting(shop, billing, {"evt-63"}, Dead)

    outcomes = await shop.settle_all(billing, [event(f"evt-{n}") for n in range(100)])

    assert Counter(outcome.status for (outcome,) in outcomes.values()) == {
        Status.PROCESSED: 99,
        Status.DEAD: 1,
    }
    assert [outcome.status for outcome in outcomes["evt-63"]] == [Status.DEAD]
    assert runs["evt-63"] == 1
    assert sum(runs.values()) <= 200
    assert shop.effects() == {f"evt-{n}": 1 for n in range(100) if n != 63}
    assert [identity for identity, *_ in shop.dead()] == ["evt-63"]


async def test_several_failing_are_each_charged_and_the_rest_take_effect(shop: Shop) -> None:
    billing = shop.consumer(batch=100, retry=RETRY)
    bad = {f"evt-{n}" for n in (0, 1, 7, 19)}
    runs = counting(shop, billing, bad)

    outcomes = await shop.settle_all(billing, [event(f"evt-{n}") for n in range(20)])

    for identity, found in outcomes.items():
        if identity not in bad:
            assert [outcome.status for outcome in found] == [Status.PROCESSED]
        elif shop.mode == "inline":
            assert [outcome.status for outcome in found] == [Status.RETRY]
        else:
            assert [outcome.status for outcome in found] == [Status.RETRY, Status.DEAD]
            assert len(shop.attempts(identity)) == 2
    assert max(runs[f"evt-{n}"] for n in range(20) if f"evt-{n}" not in bad) <= 2
    assert shop.effects() == {f"evt-{n}": 1 for n in range(20) if f"evt-{n}" not in bad}


async def test_a_batch_in_which_all_fail_charges_all(shop: Shop) -> None:
    billing = shop.consumer(batch=10, retry=RETRY)
    everyone = {f"evt-{n}" for n in range(5)}
    counting(shop, billing, everyone, Dead)
    outcomes = await shop.settle_all(billing, [event(identity) for identity in sorted(everyone)])
    assert [outcome.status for (outcome,) in outcomes.values()] == [Status.DEAD] * 5
    assert shop.count("dead") == 5
    assert not shop.effects()


@inline
async def test_duplicates_and_conflicts_inside_a_batch_are_told_apart(shop: Shop) -> None:
    billing = shop.consumer(batch=10)
    counting(shop, billing, set())
    messages = [event("a"), event("b"), event("a"), event("b", payload={"other": 1}), event("c"), event("a")]

    outcomes = await shop.settle_all(billing, messages)

    assert {identity: Counter(o.status for o in found) for identity, found in outcomes.items()} == {
        "a": {Status.PROCESSED: 1, Status.DUPLICATE: 2},
        "b": {Status.PROCESSED: 1, Status.DEAD: 1},
        "c": {Status.PROCESSED: 1},
    }
    assert {outcome.result for outcome in outcomes["a"]} == {"a"}
    assert shop.dead()[0][:2] == ("b", "conflict")
    assert shop.effects() == {"a": 1, "b": 1, "c": 1}


@inline
async def test_a_batch_past_its_time_commits_what_is_done_and_goes_on_with_the_rest(shop: Shop) -> None:
    billing = shop.consumer(batch=10)
    seconds = 0.0
    seen: list[Counter[str]] = []

    @shop.handler(billing)
    async def slow(call: Call) -> None:
        nonlocal seconds
        seen.append(shop.effects())
        await call.db.effect(call.message.id)
        seconds += 3.0

    shop.work_of(billing).monotonic = lambda: seconds
    await shop.settle_all(billing, [event(f"evt-{n}") for n in range(5)])

    assert [len(committed) for committed in seen] == [0, 0, 2, 2, 4], "five seconds: two at a time"
    assert shop.effects() == {f"evt-{n}": 1 for n in range(5)}


@stored
async def test_a_stored_batch_past_its_time_leaves_the_rest_waiting_uncharged(shop: Shop) -> None:
    billing = shop.consumer(batch=10)
    seconds = 0.0

    @shop.handler(billing)
    async def slow(call: Call) -> None:
        nonlocal seconds
        await call.db.effect(call.message.id)
        seconds += 9.0

    shop.work_of(billing).monotonic = lambda: seconds
    for n in range(3):
        await shop.deliver(billing, event(f"evt-{n}"))
    assert [item.message.id for item in await shop.work(billing)] == ["evt-0"]
    assert shop.count("queue") == 2
    await shop.work_off(billing)
    assert shop.effects() == {f"evt-{n}": 1 for n in range(3)}
    assert shop.count("attempt") == 0


async def test_a_list_handler_gets_what_is_there_in_order_and_returns_one_result_each(shop: Shop) -> None:
    billing = shop.consumer(batch=10)
    calls = []

    @shop.batch_handler(billing)
    async def together(call: Call) -> list[int]:
        calls.append([message.id for message in call.message])
        for message in call.message:
            await call.db.effect(message.id)
        return [payload["n"] * 10 for payload in call.payload]

    outcomes = await shop.settle_all(billing, [event(f"evt-{n}", payload={"n": n}) for n in range(4)])

    assert calls == [["evt-0", "evt-1", "evt-2", "evt-3"]]
    assert [outcome.result for (outcome,) in outcomes.values()] == [0, 10, 20, 30]


async def test_a_list_handler_that_fails_runs_one_by_one_and_only_the_culprit_fails(shop: Shop) -> None:
    billing = shop.consumer(batch=10, retry=RETRY)
    calls = []

    @shop.batch_handler(billing)
    async def together(call: Call) -> None:
        calls.append([message.id for message in call.message])
        for message, payload in zip(call.message, call.payload, strict=True):
            await call.db.effect(message.id)
            if payload["n"] == 2:
                raise Dead("fraud")

    outcomes = await shop.settle_all(billing, [event(f"evt-{n}", payload={"n": n}) for n in range(4)])

    assert calls[0] == ["evt-0", "evt-1", "evt-2", "evt-3"]
    assert all(len(call) == 1 for call in calls[1:])
    assert [outcome.status for (outcome,) in outcomes.values()] == [
        "processed",
        "processed",
        "dead",
        "processed",
    ]
    assert shop.effects() == {"evt-0": 1, "evt-1": 1, "evt-3": 1}


async def test_a_list_handler_with_an_undecodable_element_keeps_the_others(shop: Shop) -> None:
    billing = shop.consumer(batch=10)

    @shop.batch_handler(billing)
    async def together(call: Call) -> None:
        for message in call.message:
            await call.db.effect(message.id)

    messages = [event("a"), event("b", payload=b"not JSON"), event("c")]
    outcomes = await shop.settle_all(billing, messages)
    assert [(outcome.status, outcome.reason) for (outcome,) in outcomes.values()] == [
        (Status.PROCESSED, ""),
        (Status.DEAD, "undecodable"),
        (Status.PROCESSED, ""),
    ]
    assert shop.effects() == {"a": 1, "c": 1}


@pytest.mark.parametrize("returned", [[1], {"a": 1}, "ab"], ids=["too few", "dict", "text"])
async def test_a_list_handler_that_returns_the_wrong_number_of_results_is_told(
    shop: Shop, returned: Any
) -> None:
    billing = shop.consumer(batch=10)

    @shop.batch_handler(billing)
    async def wrong(call: Call) -> Any:
        for message in call.message:
            await call.db.effect(message.id)
        return returned if len(call.message) > 1 else {"not": "a list"}

    outcomes = await shop.settle_all(billing, [event("a"), event("b")])
    for found in outcomes.values():
        assert [outcome.status for outcome in found] == [Status.DEAD]
        assert "one result per message (1), or None" in str(found[0].error)
    assert not shop.effects()


async def test_a_result_without_a_json_form_costs_its_neighbours_nothing(shop: Shop) -> None:
    billing = shop.consumer(batch=10)

    @shop.handler(billing)
    async def odd(call: Call) -> object:
        await call.db.effect(call.message.id)
        return object() if call.message.id == "evt-1" else "fine"

    outcomes = await shop.settle_all(billing, [event(f"evt-{n}") for n in range(3)])
    assert [outcome.status for (outcome,) in outcomes.values()] == ["processed", "dead", "processed"]
    assert shop.effects() == {"evt-0": 1, "evt-2": 1}


async def test_singles_and_lists_keep_their_arrival_order_in_a_batch(shop: Shop) -> None:
    billing = shop.consumer(batch=10)
    order: list[str] = []

    @shop.batch_handler(billing, "many")
    async def together(call: Call) -> None:
        order.append("+".join(message.id for message in call.message))

    @shop.handler(billing, "one")
    async def alone(call: Call) -> None:
        order.append(call.message.id)

    kinds = ["one", "many", "many", "one", "many"]
    await shop.settle_all(billing, [event(str(n), type=kind) for n, kind in enumerate(kinds)])
    assert order == ["0", "1+2", "3", "4"]


async def test_a_batch_of_one_kind_is_taken_by_a_plain_effect(shop: Shop) -> None:
    billing = shop.consumer(batch=7)
    shop.handler(billing)(effect)
    await shop.settle_all(billing, [event(f"evt-{n}") for n in range(50)])
    assert shop.effects() == {f"evt-{n}": 1 for n in range(50)}
    assert shop.count("queue") == 0


@inline
@pytest.mark.parametrize("batch", [1, 10])
async def test_one_whose_failure_is_still_to_be_recorded_is_neither_claimed_ahead_nor_run_again(
    shop: Shop, batch: int
) -> None:
    billing = shop.consumer(batch=batch)
    shop.handler(billing)(effect)
    mailbox = ThreadMailbox()
    mailbox.items.extend(billing.intake.from_message(event(f"evt-{n}")) for n in range(3))
    mailbox.items[1].unrecorded = ValueError("the database was gone when this was to be written down")
    settled: list[Item] = []
    while await shop.perform(
        billing, lambda work: inline_turn(work, mailbox), settled=settled, mailbox=mailbox
    ):
        pass
    assert [(item.message.id, item.outcome and item.outcome.status) for item in settled] == [
        ("evt-0", Status.PROCESSED), ("evt-1", Status.RETRY), ("evt-2", Status.PROCESSED)
    ]  # fmt: skip
    assert shop.effects() == {"evt-0": 1, "evt-2": 1}
    assert [kind for _, _, kind, *_ in shop.attempts("evt-1")] == ["ValueError"]


@on("psycopg", "asyncpg")
async def test_the_only_new_one_of_a_batch_is_not_charged_for_a_lock_it_had_no_time_to_wait_for(
    shop: Shop, shop_database: str
) -> None:
    billing = shop.consumer(batch=10)
    shop.rows("INSERT INTO shop_effect (key, note) VALUES ('row', '')")
    runs: list[str] = []
    with psycopg.connect(shop_database) as holder:

        @shop.handler(billing)
        async def waits(call: Call) -> None:
            if call.message.id == "evt-1":
                runs.append(call.message.id)
                if len(runs) == 2:
                    holder.rollback()
                await call.db.run("UPDATE shop_effect SET note = note || 'x' WHERE key = 'row'")

        await shop.settle_all(billing, [event("evt-0")])
        holder.execute("UPDATE shop_effect SET note = 'held' WHERE key = 'row'")
        outcomes = await shop.settle_all(billing, [event("evt-0"), event("evt-1")])
    assert [outcome.status for outcome in outcomes["evt-1"]] == [Status.PROCESSED]
    assert len(runs) == 2
    assert shop.count("attempt") == 0
    assert shop.notes() == ["x"]
