"""`order_by="key"`: one message of a key at a time, in arrival order, side by side across keys."""

import asyncio
from functools import partial

import pytest

from oncebox import Backoff, Dead, Status
from oncebox.brokers.memory import Memory
from oncebox.core.audit import Act
from oncebox.core.keys import stuck_keys, unblock
from oncebox.errors import ConfigError
from tests.core.fixtures import inline, stored
from tests.core.kit import Call, Shop, event
from tests.order.lines import BY_KEY, applied, case, lines, note, put
from tests.waiting import eventually_async

QUICK = Backoff(attempts=3, base_seconds=0.0)


@stored
async def test_messages_of_a_key_run_in_the_order_they_came(shop: Shop) -> None:
    cases = shop.consumer(batch=10, **BY_KEY)
    shop.handler(cases)(note)
    await put(shop, cases, *(case(key, n) for n in range(1, 6) for key in "abc"))
    assert [applied(shop, key) for key in "abc"] == [[1, 2, 3, 4, 5]] * 3


@stored
async def test_a_batch_never_holds_two_of_a_key(shop: Shop) -> None:
    cases = shop.consumer(batch=10, **BY_KEY)
    shop.handler(cases)(note)
    for n in (1, 2, 3):
        await shop.deliver(cases, case("a", n))
    assert [item.message.id for item in await shop.work(cases)] == ["a-1"]


@stored
async def test_messages_without_a_key_are_not_ordered(shop: Shop) -> None:
    cases = shop.consumer(batch=10, order_by="key")
    shop.handler(cases)(note)
    for n in (1, 2):
        await shop.deliver(cases, case("a", n))
    assert len(await shop.work(cases)) == 2


@stored
async def test_a_failing_head_is_tried_again_in_place_while_other_keys_go_on(shop: Shop) -> None:
    cases = shop.consumer(batch=10, retry=Backoff(attempts=3, base_seconds=0.0), **BY_KEY)
    failures = iter([True, True, False])

    @shop.handler(cases)
    async def fails_twice(call: Call) -> None:
        if call.message.id == "a-1" and next(failures):
            raise RuntimeError
        await note(call)

    await put(shop, cases, case("a", 1), case("a", 2), case("b", 1))
    await shop.work_off(cases)
    assert applied(shop, "a") == [1, 2]
    assert applied(shop, "b") == [1]


@stored
async def test_a_dead_head_blocks_its_key_until_somebody_unblocks_it(shop: Shop) -> None:
    cases = shop.consumer(batch=10, **BY_KEY)

    @shop.handler(cases)
    async def refuses_one(call: Call) -> None:
        if call.message.id == "a-1":
            raise Dead("no")
        await note(call)

    await put(shop, cases, case("a", 1), case("a", 2), case("a", 3), case("b", 1))
    assert (applied(shop, "a"), applied(shop, "b")) == ([], [1])
    queries = shop.app.database.queries
    [stuck] = await shop.perform(cases, lambda work: stuck_keys(queries))
    assert (stuck.key, stuck.why, stuck.head, stuck.waiting) == ("a", "blocked", "a-1", 2)
    act = Act(verb="keys unblock", who="me", reason="by hand")
    await shop.perform(cases, lambda work: unblock(queries, cases.name, "a", act))
    await shop.work_off(cases)
    assert applied(shop, "a") == [2, 3]
    assert await shop.perform(cases, lambda work: stuck_keys(queries)) == []
    assert shop.count("audit") == 1


@stored
async def test_a_dead_head_is_skipped_where_policy_says_so(shop: Shop) -> None:
    cases = shop.consumer(batch=10, on_dead="skip", **BY_KEY)

    @shop.handler(cases)
    async def refuses_one(call: Call) -> None:
        if call.message.id == "a-1":
            raise Dead("no")
        await note(call)

    await put(shop, cases, case("a", 1), case("a", 2))
    await shop.work_off(cases)
    assert applied(shop, "a") == [2]


@stored
async def test_what_is_stored_while_the_last_of_its_key_is_finished_is_not_forgotten(shop: Shop) -> None:
    cases = shop.consumer(lock_timeout_seconds=30.0, **BY_KEY)
    shop.handler(cases)(note)
    for n in range(1, 21):
        await shop.deliver(cases, case("a", 2 * n - 1))
        # The next one is stored while a worker finishes what is, to its knowledge, the last.
        await asyncio.gather(shop.work(cases), shop.deliver(cases, case("a", 2 * n)))
        await shop.work_off(cases)
        assert shop.count("queue") == 0, f"round {n}: somebody waits for a turn that never comes"
    assert applied(shop, "a") == list(range(1, 41))


@stored
async def test_workers_side_by_side_keep_the_order_of_every_key(shop: Shop) -> None:
    memory = Memory()
    cases = shop.consumer("cases", memory.queue("cases"), concurrency=4, batch=5, retry=QUICK, **BY_KEY)
    failing = {"c-3", "d-7"}

    @shop.handler(cases)
    async def fails_once(call: Call) -> None:
        if call.message.id in failing:
            failing.discard(call.message.id)
            raise RuntimeError
        await note(call)

    memory.put("cases", *(case(key, n) for n in range(1, 21) for key in "abcdefgh"), duplicates=1)
    async with shop.app.running():
        await eventually_async(lambda: lines(shop) == 160, 60)
    assert [applied(shop, key) for key in "abcdefgh"] == [list(range(1, 21))] * 8


@inline
async def test_inline_needs_a_source_that_pins_keys(shop: Shop) -> None:
    memory = Memory()
    cases = shop.consumer("cases", memory.queue("cases"), **BY_KEY)
    shop.handler(cases)(note)
    with pytest.raises(ConfigError, match='use mode="stored"'):
        async with shop.app.running():
            pass


@inline
async def test_inline_a_failed_message_goes_to_the_queue_and_its_key_waits_behind_it(shop: Shop) -> None:
    memory = Memory()
    queue = memory.queue("cases", pins_keys=True)
    cases = shop.consumer("cases", queue, retry=Backoff(attempts=9, base_seconds=0.0), **BY_KEY)
    gate = shop.gate()
    failures = iter([True, True])

    @shop.handler(cases)
    async def fails_twice(call: Call) -> None:
        if call.message.id == "a-2" and next(failures, False):
            raise RuntimeError
        await note(call)

    memory.put("cases", *(case(key, n) for n in range(1, 8) for key in "ab"))
    gate.open()
    async with shop.app.running():
        await eventually_async(lambda: lines(shop) == 14, 30)
        await eventually_async(lambda: shop.count("queue") == 0, 30)
    assert applied(shop, "a") == applied(shop, "b") == list(range(1, 8))
    assert memory.stats()["cases"].acked == 14


@inline
async def test_inline_a_dead_head_blocks_and_the_rest_is_stored_behind_it(shop: Shop) -> None:
    cases = shop.consumer(**BY_KEY)

    @shop.handler(cases)
    async def refuses_one(call: Call) -> None:
        if call.message.id == "a-1":
            raise Dead("no")
        await note(call)

    outcomes = [await shop.deliver(cases, case("a", n)) for n in (1, 2, 3)]
    assert [outcome.status for outcome in outcomes] == [Status.DEAD, Status.STORED, Status.STORED]
    assert applied(shop, "a") == []
    queries = shop.app.database.queries
    act = Act(verb="keys unblock", who="me", reason="by hand")
    await shop.perform(cases, lambda work: unblock(queries, cases.name, "a", act))
    await shop.work_off(cases)
    assert applied(shop, "a") == [2, 3]
    assert (await shop.deliver(cases, case("a", 4))).status is Status.PROCESSED


@inline
async def test_inline_an_unknown_type_is_dead_though_its_key_has_a_backlog(shop: Shop) -> None:
    cases = shop.consumer(retry=Backoff(attempts=9, base_seconds=0.0), on_dead="skip", **BY_KEY)
    failures = iter([True])

    @shop.handler(cases, "paid")
    async def fails_once(call: Call) -> None:
        if next(failures, False):
            raise RuntimeError
        await note(call)

    sent = [case("a", 1), case("a", 2, type="nobody.knows"), case("a", 3)]
    outcomes = [await shop.deliver(cases, each) for each in sent]
    assert [(each.status, each.reason) for each in outcomes] == [
        (Status.STORED, ""),
        (Status.DEAD, "unknown type"),
        (Status.STORED, ""),
    ]
    await shop.work_off(cases)
    assert applied(shop, "a") == [1, 3]
    assert shop.count("queue") == 0


@inline
async def test_inline_duplicates_are_known_wherever_the_first_one_is(shop: Shop) -> None:
    cases = shop.consumer(retry=Backoff(attempts=3, base_seconds=60.0), **BY_KEY)

    @shop.handler(cases)
    async def fails(call: Call) -> None:
        if call.message.id == "a-2":
            raise RuntimeError
        await note(call)

    await shop.deliver(cases, case("a", 1))
    assert (await shop.deliver(cases, case("a", 2))).status is Status.STORED
    again = [(await shop.deliver(cases, case("a", n))).status for n in (1, 2)]
    assert again == [Status.DUPLICATE, Status.WAITING]


@inline
async def test_of_what_comes_together_each_keeps_its_place(shop: Shop) -> None:
    """As a file or a webhook brings it. The second has no key; the third waits behind the first, which failed."""
    cases = shop.consumer(order_by="key", retry=Backoff(attempts=3, base_seconds=3600.0))

    @shop.handler(cases)
    async def refuses_one(call: Call) -> None:
        if call.message.id == "a-1":
            raise RuntimeError
        await note(call)

    brought = (("a", 1, "a"), ("b", 1, None), ("a", 2, "a"))
    items = [
        cases.intake.from_message(
            event(f"{name}-{version}", key=key, payload={"case": name, "version": version})
        )
        for name, version, key in brought
    ]
    if shop.kind.is_async:
        await cases.take(items)
    else:
        await shop.in_thread(partial(cases.take_sync, items))
    told = [item.outcome and item.outcome.status for item in items]
    assert told == [Status.STORED, Status.PROCESSED, Status.STORED]
    assert (applied(shop, "a"), applied(shop, "b")) == ([], [1])
