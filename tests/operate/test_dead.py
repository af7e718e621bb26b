"""Dead letters: redriven once and in order, discarded, edited, settled; each with its audit row."""

from typing import Any

import psycopg
import pytest

from oncebox import Backoff, Dead, Status
from oncebox.core.audit import Act
from oncebox.core.dead import REPLACES, Choice, DeadLetter, count_dead, dead_letters, decide, replace, resolve
from oncebox.core.keys import stuck_keys
from oncebox.core.ordered import deliver_in_order
from oncebox.core.receiving import receive
from oncebox.errors import UsageError
from tests.core.fixtures import postgresql, stored
from tests.core.kit import Call, Shop, effect, event
from tests.order.lines import BY_KEY, BY_SEQUENCE, applied, case, note, put

ACT = Act(verb="dead", who="me", reason="it is fixed")


class Switch:
    """What makes a handler fail, until it is turned off."""

    def __init__(self) -> None:
        self.broken = True

    async def __call__(self, call: Call) -> Any:
        if self.broken:
            raise Dead("broken")
        return await effect(call)


async def ask(shop: Shop, consumer: Any, op: Any) -> Any:
    return await shop.perform(consumer, lambda work: op)


async def letters(shop: Shop, of: Any, **choice: Any) -> list[DeadLetter]:
    found: list[DeadLetter] = await ask(shop, of, dead_letters(shop.app.database.queries, Choice(**choice)))
    return found


@postgresql
async def test_what_somebody_decides_about_now_is_listed_and_not_decided_about_twice(
    shop: Shop, shop_url: str
) -> None:
    billing = shop.consumer()
    shop.handler(billing)(Switch())
    await shop.settle(billing, event())
    with psycopg.connect(shop_url) as other:
        other.execute("SELECT 1 FROM oncebox.dead FOR UPDATE")
        assert [each.id for each in await letters(shop, billing)] == ["evt-1"]
        queries = shop.app.database.queries
        assert await ask(shop, billing, decide(queries, "discard", Choice(), ACT)) == []


async def test_a_redriven_message_takes_effect_once_with_its_id_and_headers(shop: Shop) -> None:
    billing, switch = shop.consumer(), Switch()
    seen: list[Any] = []

    @shop.handler(billing)
    async def looks(call: Call) -> Any:
        seen.append((call.message.id, call.message.header("x"), call.message.attempt))
        return await switch(call)

    message = event(headers=(("x", b"y"),))
    assert (await shop.settle(billing, message)).status is Status.DEAD
    switch.broken = False
    queries = shop.app.database.queries
    [changed] = await ask(shop, billing, decide(queries, "redrive", Choice(ids=("evt-1",)), ACT))
    assert changed.reason == "terminal"
    await shop.work_off(billing)
    assert shop.effects() == {"evt-1": 1}
    assert seen[-1] == ("evt-1", b"y", 1)
    assert await ask(shop, billing, decide(queries, "redrive", Choice(), ACT)) == []
    assert (await shop.deliver(billing, message)).status is Status.DUPLICATE
    assert shop.rows(f"SELECT verb, who, reason, result FROM {shop.table('audit')}") == [
        ("dead", "me", "it is fixed", "waiting")
    ]


async def test_a_discarded_message_never_runs_and_its_duplicate_is_told_so(shop: Shop) -> None:
    billing, switch = shop.consumer(), Switch()
    shop.handler(billing)(switch)
    await shop.settle(billing, event())
    await ask(shop, billing, decide(shop.app.database.queries, "discard", Choice(), ACT))
    switch.broken = False
    assert (await shop.deliver(billing, event())).status is Status.DISCARDED
    assert (shop.effects(), shop.count("dead"), shop.count("queue")) == ({}, 0, 0)


async def test_choices_narrow_and_counts_agree_with_them(shop: Shop) -> None:
    billing = shop.consumer(retry=Backoff(attempts=1))

    @shop.handler(billing)
    async def fails(call: Call) -> None:
        raise (TimeoutError if call.message.type == "paid" else Dead)("no")

    for n in range(3):
        await shop.settle(billing, event(f"p-{n}", key="k" if n else None))
        await shop.settle(billing, event(f"s-{n}", type="sent"))
    assert [each.id for each in await letters(shop, billing, error_type="TimeoutError")] == [
        "p-0",
        "p-1",
        "p-2",
    ]
    assert len(await letters(shop, billing, reason="terminal", type="sent")) == 3
    assert {each.id for each in await letters(shop, billing, key="k")} == {"p-1", "p-2"}
    assert await letters(shop, billing, older_seconds=3600.0) == []
    assert len(await letters(shop, billing, newer_seconds=3600.0)) == 6
    assert await letters(shop, billing, consumer="other") == []
    counts = await ask(shop, billing, count_dead(shop.app.database.queries, Choice(type="paid")))
    assert [(each.consumer, each.reason, each.type, each.count) for each in counts] == [
        ("billing", "exhausted", "paid", 3)
    ]


async def test_a_conflict_is_settled_by_choosing_which_payload_stands(shop: Shop) -> None:
    billing = shop.consumer()
    seen: list[Any] = []

    @shop.handler(billing)
    async def looks(call: Call) -> None:
        seen.append((call.payload["n"], call.message.header(REPLACES)))
        await effect(call)

    for id_ in ("a", "b"):
        await shop.settle(billing, event(id_, payload={"n": 1}))
        await shop.deliver(billing, event(id_, payload={"n": 2}))
    queries = shop.app.database.queries
    assert await ask(shop, billing, decide(queries, "redrive", Choice(), ACT)) == [], (
        "a conflict is not redriven"
    )
    first, second = await letters(shop, billing)
    assert (first.is_conflict, second.is_conflict) == (True, True)
    await ask(shop, billing, resolve(queries, first, "first", ACT))
    now = await ask(shop, billing, resolve(queries, second, "second", ACT))
    assert now not in ("a", "b")
    await shop.work_off(billing)
    assert seen == [(1, None), (1, None), (2, b"b")]
    assert shop.effects() == {"a": 1, "b": 1, now: 1}
    assert shop.count("dead") == 0


@stored
@pytest.mark.parametrize("order", [BY_KEY, BY_SEQUENCE], ids=["by key", "by sequence"])
async def test_settling_a_conflict_leaves_the_dead_head_of_its_key_alone(
    shop: Shop, order: dict[str, Any]
) -> None:
    cases, queries = shop.consumer(**order), shop.app.database.queries

    @shop.handler(cases)
    async def first_dies(call: Call) -> None:
        if call.message.id == "a-1":
            raise Dead("broken")
        await note(call)

    await put(shop, cases, case("a", 1), case("a", 2))
    await shop.deliver(cases, event("a-1", payload={"case": "a", "version": 1, "other": True}))
    [conflict] = await letters(shop, cases, reason="conflict")
    stands = await ask(shop, cases, resolve(queries, conflict, "second", ACT))
    await shop.work_off(cases)
    [stuck] = await ask(shop, cases, stuck_keys(queries))
    assert (stuck.key, stuck.head, applied(shop, "a")) == ("a", "a-1", [])
    # Once somebody has decided about it, what stands for the other one has its turn, too.
    await ask(shop, cases, decide(queries, "discard", Choice(ids=("a-1",)), ACT))
    await shop.work_off(cases)
    in_turn = [1, 2] if order is BY_SEQUENCE else [2, 1]  # by arrival, it came last
    assert (applied(shop, "a"), await ask(shop, cases, stuck_keys(queries))) == (in_turn, [])
    assert shop.rows(f"SELECT count(*) FROM {shop.table('ledger')} WHERE message_id = ?", stands) == [(1,)]


async def test_an_edited_payload_is_a_new_message_that_names_the_old(shop: Shop) -> None:
    billing = shop.consumer()

    @shop.handler(billing)
    async def picky(call: Call) -> None:
        if call.payload["n"] < 0:
            raise Dead("negative")
        await effect(call)

    await shop.settle(billing, event(payload={"n": -1}))
    [letter] = await letters(shop, billing)
    queries = shop.app.database.queries
    now = await ask(shop, billing, replace(queries, letter, ACT, payload=b'{"n":1}'))
    await shop.work_off(billing)
    assert shop.effects() == {now: 1}
    assert (await shop.deliver(billing, event(payload={"n": -1}))).status is Status.DISCARDED
    with pytest.raises(UsageError, match="meanwhile"):
        await ask(shop, billing, replace(queries, letter, ACT, payload=b"{}"))


@pytest.mark.parametrize("order", [BY_KEY, BY_SEQUENCE], ids=["key", "sequence"])
async def test_redriving_a_blocked_key_runs_it_in_order(shop: Shop, order: dict[str, Any]) -> None:
    cases, broken = shop.consumer(**order), [True]

    @shop.handler(cases)
    async def fails_at_first(call: Call) -> None:
        if broken[0] and call.message.id == "a-2":
            raise Dead("no")
        await note(call)

    await put(shop, cases, *(case("a", n) for n in range(1, 6)), case("b", 1))
    assert (applied(shop, "a"), applied(shop, "b")) == ([1], [1])
    broken[0] = False
    queries = shop.app.database.queries
    await ask(shop, cases, decide(queries, "redrive", Choice(ids=("a-2",)), ACT))
    await shop.work_off(cases)
    assert applied(shop, "a") == [1, 2, 3, 4, 5]
    assert await ask(shop, cases, stuck_keys(queries)) == []


async def test_discarding_the_dead_head_lets_its_key_go_on(shop: Shop) -> None:
    cases = shop.consumer(**BY_KEY)

    @shop.handler(cases)
    async def refuses_one(call: Call) -> None:
        if call.message.id == "a-1":
            raise Dead("no")
        await note(call)

    await put(shop, cases, case("a", 1), case("a", 2))
    await ask(shop, cases, decide(shop.app.database.queries, "discard", Choice(), ACT))
    await shop.work_off(cases)
    assert applied(shop, "a") == [2]


@pytest.mark.parametrize("first", ["a-1", "a-2"])
async def test_a_key_is_blocked_until_every_dead_head_of_it_is_decided_about(shop: Shop, first: str) -> None:
    """One that is refused while another blocks waits for a person, too, and does not stand for it."""
    cases = shop.consumer(**BY_KEY, payload_bytes_max=200)

    @shop.handler(cases)
    async def refuses_one(call: Call) -> None:
        if call.message.id == "a-1":
            raise Dead("no")
        await note(call)

    large = event(id="a-2", payload={"case": "a", "version": 2, "large": "x" * 300})
    await put(shop, cases, case("a", 1))
    item = cases.intake.from_message(large)
    inline = cases.policy.mode == "inline"
    await shop.perform(cases, lambda work: deliver_in_order(work, item) if inline else receive(work, [item]))
    await put(shop, cases, case("a", 3))
    queries = shop.app.database.queries
    other = "a-2" if first == "a-1" else "a-1"
    for decided, head in ((), "a-1"), ((first,), other):
        for each in decided:
            await ask(shop, cases, decide(queries, "discard", Choice(ids=(each,)), ACT))
        await shop.work_off(cases)
        assert applied(shop, "a") == []
        [stuck] = await ask(shop, cases, stuck_keys(queries))
        assert (stuck.why, stuck.head) == ("blocked", head)
    await ask(shop, cases, decide(queries, "discard", Choice(ids=(other,)), ACT))
    await shop.work_off(cases)
    assert applied(shop, "a") == [3]
    assert await ask(shop, cases, stuck_keys(queries)) == []
