"""`order_by="sequence"`: the version decides; what is ahead waits, what is past is stale."""

import random
from typing import Any

import psycopg
import pytest

from oncebox import Backoff, Dead, Status
from oncebox.core.audit import Act
from oncebox.core.keys import Passed, close_gaps, reset, skip_gap, stuck_keys
from oncebox.core.receiving import receive
from oncebox.core.steps import Begin, Op
from oncebox.core.work import Work
from oncebox.errors import UsageError
from tests.core.fixtures import inline, on, stored
from tests.core.kit import Call, Shop, event
from tests.order.lines import AT_ONCE_SECONDS, BY_SEQUENCE, applied, case, note, put

ACT = Act(verb="keys", who="me", reason="by hand")
one_of_each = on("sqlite", "psycopg", "asyncpg")


@stored
async def test_shuffled_versions_run_in_order_each_once(shop: Shop) -> None:
    cases = shop.consumer(batch=10, **BY_SEQUENCE)
    shop.handler(cases)(note)
    messages = [case(key, n) for key in "abcd" for n in range(1, 13)] * 2
    random.Random(7).shuffle(messages)
    for message in messages:
        await shop.deliver(cases, message)
    await shop.work_off(cases)
    assert [applied(shop, key) for key in "abcd"] == [list(range(1, 13))] * 4
    assert shop.count("queue") == 0


@stored
async def test_what_is_past_is_stale_and_kept_in_the_ledger(shop: Shop) -> None:
    cases = shop.consumer(**BY_SEQUENCE)
    shop.handler(cases)(note)
    await put(shop, cases, case("a", 1), case("a", 2))
    late = case("a", 1, id="another")
    assert (await shop.deliver(cases, late)).status is Status.STALE
    assert (await shop.deliver(cases, late)).status is Status.STALE
    assert applied(shop, "a") == [1, 2]
    assert shop.count("queue") == 0


@stored
async def test_two_messages_with_one_version_are_one_effect(shop: Shop) -> None:
    cases = shop.consumer(**BY_SEQUENCE)
    shop.handler(cases)(note)
    for id_ in ("x", "y"):
        await shop.deliver(cases, case("a", 2, id=id_))
    await put(shop, cases, case("a", 1))
    assert applied(shop, "a") == [1, 2]
    assert shop.count("queue") == 0
    assert (await shop.deliver(cases, case("a", 2, id="y"))).status is Status.STALE


@stored
@pytest.mark.parametrize("on_gap", ["park", "skip", "proceed"])
async def test_a_missing_version_ends_as_policy_says(shop: Shop, on_gap: str) -> None:
    cases = shop.consumer(batch=10, on_gap=on_gap, gap_seconds=AT_ONCE_SECONDS, **BY_SEQUENCE)
    shop.handler(cases)(note)
    await put(shop, cases, *(case("a", n) for n in (1, 4, 5)))
    queries = shop.app.database.queries
    [stuck] = await shop.perform(cases, lambda work: stuck_keys(queries))
    assert (stuck.why, stuck.missing, stuck.waiting, stuck.last) == ("gap", "2-3", 2, 1)
    [passed] = await shop.perform(cases, close_gaps)
    assert passed.done == {"park": "parked", "skip": "skipped", "proceed": "proceeded"}[on_gap]
    await shop.work_off(cases)
    await put(shop, cases, case("a", 2), case("a", 3))
    match on_gap:
        case "park":
            assert applied(shop, "a") == [1, 2, 3]
            assert shop.rows(f"SELECT reason FROM {shop.table('dead')}") == [("gap",), ("gap",)]
        case "skip":
            assert applied(shop, "a") == [1, 4, 5]
            assert (await shop.deliver(cases, case("a", 2))).status is Status.STALE
        case _:
            assert applied(shop, "a") == [1, 4, 5, 2, 3]
    assert await shop.perform(cases, lambda work: stuck_keys(queries)) == []


@stored
async def test_a_gap_that_closes_in_time_is_no_gap(shop: Shop) -> None:
    cases = shop.consumer(gap_seconds=60, **BY_SEQUENCE)
    shop.handler(cases)(note)
    await put(shop, cases, case("a", 2))
    queries = shop.app.database.queries
    assert await shop.perform(cases, close_gaps) == []
    assert len(await shop.perform(cases, lambda work: stuck_keys(queries))) == 1
    await put(shop, cases, case("a", 1))
    assert applied(shop, "a") == [1, 2]
    assert await shop.perform(cases, lambda work: stuck_keys(queries)) == []


@stored
async def test_a_person_skips_what_is_missing_or_says_where_a_key_stands(shop: Shop) -> None:
    cases = shop.consumer(batch=10, **BY_SEQUENCE)
    shop.handler(cases)(note)
    await put(shop, cases, case("a", 3), case("b", 3), case("b", 4))
    queries = shop.app.database.queries
    await shop.perform(cases, lambda work: skip_gap(queries, cases.name, "a", ACT))
    await shop.perform(cases, lambda work: reset(queries, cases.name, "b", 3, ACT))
    await shop.work_off(cases)
    assert (applied(shop, "a"), applied(shop, "b")) == ([3], [4])
    assert (await shop.deliver(cases, case("b", 3))).status is Status.STALE


@stored
async def test_a_version_that_is_finished_after_a_reset_does_not_undo_it(shop: Shop) -> None:
    cases, failing = shop.consumer(retry=Backoff(attempts=9, base_seconds=0.0), **BY_SEQUENCE), [True]

    @shop.handler(cases)
    async def fails_at_first(call: Call) -> None:
        if call.payload["version"] == 2 and failing:
            raise RuntimeError
        await note(call)

    queries = shop.app.database.queries
    await shop.deliver(cases, case("a", 1))
    await shop.deliver(cases, case("a", 2))
    for _ in range(3):
        await shop.work(cases)
    await shop.perform(cases, lambda work: reset(queries, cases.name, "a", 0, ACT))
    failing.clear()
    await shop.work_off(cases)
    await put(shop, cases, *(case("a", n, id=f"anew-{n}") for n in (1, 2, 3)))
    assert applied(shop, "a") == [1, 2, 1, 2, 3]


@stored
async def test_nothing_is_parked_or_skipped_while_the_next_version_is_in_line(shop: Shop) -> None:
    cases = shop.consumer(gap_seconds=AT_ONCE_SECONDS, on_gap="park", **BY_SEQUENCE)
    shop.handler(cases)(note)
    await put(shop, cases, case("a", 3))
    queries = shop.app.database.queries
    late = [case("a", 1), case("a", 2)]

    def overdue(work: Work) -> Op[list[Passed]]:
        """The missing ones come after the lane was found overdue, and before it is locked."""
        flow = close_gaps(work)
        given: Any = None
        while True:
            try:
                step = flow.send(given)
            except StopIteration as ended:
                done: list[Passed] = ended.value
                return done
            while late and isinstance(step, Begin):
                yield from receive(work, [cases.intake.from_message(late.pop(0))])
            given = yield step

    assert await shop.perform(cases, overdue) == []
    with pytest.raises(UsageError, match="waits for no version"):
        await shop.perform(cases, lambda work: skip_gap(queries, cases.name, "a", ACT))
    await shop.work_off(cases)
    assert applied(shop, "a") == [1, 2, 3]
    assert shop.count("dead") == 0


@stored
async def test_the_start_is_learned_from_the_first_that_comes(shop: Shop) -> None:
    cases = shop.consumer(**{**BY_SEQUENCE, "sequence_start": "learn"})
    shop.handler(cases)(note)
    await put(shop, cases, case("a", 41), case("a", 43), case("a", 42))
    assert applied(shop, "a") == [41, 42, 43]
    assert (await shop.deliver(cases, case("a", 40))).status is Status.STALE


@stored
async def test_a_dead_version_blocks_and_the_next_goes_on_after_it(shop: Shop) -> None:
    from oncebox.core.keys import unblock

    cases = shop.consumer(batch=10, **BY_SEQUENCE)

    @shop.handler(cases)
    async def refuses_one(call: Call) -> None:
        if call.payload["version"] == 2:
            raise Dead("no")
        await note(call)

    await put(shop, cases, *(case("a", n) for n in (1, 2)))
    await put(shop, cases, case("a", 3))
    assert applied(shop, "a") == [1]
    queries = shop.app.database.queries
    await shop.perform(cases, lambda work: unblock(queries, cases.name, "a", ACT))
    await put(shop, cases, case("a", 4))
    assert applied(shop, "a") == [1, 3, 4]


@one_of_each
@pytest.mark.parametrize("payload", [{"case": "a"}, {"version": 1}, {"case": "a", "version": "x"}, {}])
async def test_a_message_without_key_or_version_is_dead_with_the_reason(shop: Shop, payload: Any) -> None:
    cases = shop.consumer(**BY_SEQUENCE)
    shop.handler(cases)(note)
    outcome = await shop.deliver(cases, event("e", payload=payload))
    assert (outcome.status, outcome.reason) == (Status.DEAD, "no place")
    assert "a message ordered by sequence needs" in str(outcome.error)


@inline
async def test_inline_what_is_ahead_waits_in_the_queue(shop: Shop) -> None:
    cases = shop.consumer(**BY_SEQUENCE)
    shop.handler(cases)(note)
    outcomes = [(await shop.deliver(cases, case("a", n))).status for n in (1, 3, 2)]
    assert outcomes == [Status.PROCESSED, Status.STORED, Status.STORED]
    await shop.work_off(cases)
    assert applied(shop, "a") == [1, 2, 3]
    assert (await shop.deliver(cases, case("a", 4))).status is Status.PROCESSED
    assert (await shop.deliver(cases, case("a", 4, id="other"))).status is Status.STALE


@inline
@pytest.mark.parametrize("on_dead", ["block", "skip"])
async def test_inline_an_unknown_type_is_dead_when_it_comes_and_counts_when_its_turn_comes(
    shop: Shop, on_dead: str
) -> None:
    cases = shop.consumer(on_dead=on_dead, **BY_SEQUENCE)
    shop.handler(cases, "paid")(note)
    strange = case("a", 2, type="nobody.knows")
    outcomes = [(await shop.deliver(cases, each)).status for each in (case("a", 1), case("a", 3), strange)]
    assert outcomes == [Status.PROCESSED, Status.STORED, Status.DEAD]
    ahead = case("b", 2, type="nobody.knows")
    assert (await shop.deliver(cases, ahead)).reason == "unknown type"
    assert (await shop.deliver(cases, case("b", 1))).status is Status.PROCESSED, (
        "what is ahead blocks nothing"
    )
    await shop.work_off(cases)
    assert applied(shop, "a") == ([1, 3] if on_dead == "skip" else [1])
    assert shop.count("queue") == (0 if on_dead == "skip" else 1)


@stored
async def test_what_a_handler_sends_to_an_ordered_consumer_stands_in_line(shop: Shop) -> None:
    cases = shop.consumer("cases", batch=10, **BY_SEQUENCE)
    shop.handler(cases)(note)
    sender = shop.consumer("sender")

    @shop.handler(sender)
    async def sends(call: Call) -> None:
        for version in (2, 3, 1):
            call.tx.send("cases", "changed", {"case": "a", "version": version})

    await shop.settle(sender, event())
    await shop.work_off(cases)
    assert applied(shop, "a") == [1, 2, 3]
    assert shop.count("queue") == 0


@stored
async def test_a_message_stored_in_the_callers_transaction_stands_in_line(shop: Shop) -> None:
    if shop.kind.name != "psycopg":
        pytest.skip("one handle is enough: the calls are the same")
    cases = shop.consumer("cases", **{**BY_SEQUENCE, "sequence_start": "learn"})
    shop.handler(cases)(note)
    with psycopg.connect(shop._url) as connection:
        for version in (7, 9, 8):
            cases.process_sync(case("a", version), connection)
    await shop.work_off(cases)
    assert applied(shop, "a") == [7, 8, 9]


@stored
async def test_a_version_that_nobody_can_handle_is_missing_and_skips_nothing(shop: Shop) -> None:
    cases = shop.consumer(payload_bytes_max=100, **BY_SEQUENCE)
    shop.handler(cases)(note)
    large = event("large", payload={"case": "a", "version": 3, "blob": "x" * 200})
    items = [cases.intake.from_message(message) for message in (large, case("a", 4), case("a", 1))]
    await shop.perform(cases, lambda work: receive(work, items))
    await shop.work_off(cases)
    await put(shop, cases, case("a", 2))
    assert applied(shop, "a") == [1, 2]
    queries = shop.app.database.queries
    [stuck] = await shop.perform(cases, lambda work: stuck_keys(queries))
    assert (stuck.why, stuck.missing) == ("gap", "3")
    await shop.perform(cases, lambda work: skip_gap(queries, cases.name, "a", ACT))
    await shop.work_off(cases)
    assert applied(shop, "a") == [1, 2, 4]
