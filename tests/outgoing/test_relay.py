"""The relay: takes by state, publishes with confirms, marks only what was confirmed."""

import random
from typing import Any

import pytest

from oncebox.brokers.memory import Memory
from oncebox.errors import BrokerError, BrokerUnavailable, MessageError
from oncebox.policy import Backoff
from oncebox.runtime import pipes
from oncebox.runtime import relay as runtime
from tests.core.fixtures import stored
from tests.core.kit import Shop
from tests.outgoing.kit import LATER, ScriptedSink, outbox_ids, outbox_rows, put, relay, until

pytestmark = stored


def refused(*ids: str) -> Any:
    return lambda message: BrokerError("no") if message.id in ids else None


async def test_publishes_what_was_committed_and_deletes_it(shop: Shop, sink: ScriptedSink) -> None:
    put(shop, "a", "b", key="k", topic="t", headers={"x": "y"})
    async with relay(shop, sink) as it:
        assert await it.turn() == 2
        assert await it.turn() == 0
    assert (sink.ids, outbox_ids(shop)) == (["a", "b"], [])
    first = sink.taken[0]
    assert (first.source, first.type, first.key, first.payload) == ("shop", "paid", "k", b'{"n":"a"}')
    assert (first.header("x"), first.provenance) == (b"y", {"topic": "t"})


async def test_reaches_queues_through_the_memory_broker(shop: Shop) -> None:
    broker = Memory()
    queue = broker.queue("receipts")
    broker.bind("events", "receipts")
    put(shop, "a")
    async with relay(shop, broker.topic("events")) as it:
        await it.turn()
    await queue.open()
    (delivery,) = await queue.receive(10)
    assert delivery.body == b'{"n":"a"}'
    assert outbox_ids(shop) == []


async def test_a_batch_confirmed_in_part_keeps_the_rest_with_their_ids(
    shop: Shop, sink: ScriptedSink
) -> None:
    sink.judge = refused("b", "d")
    put(shop, "a", "b", "c", "d", "e")
    async with relay(shop, sink) as it:
        await it.turn()
        assert (sink.ids, outbox_ids(shop)) == (["a", "c", "e"], ["b", "d"])
        assert outbox_rows(shop, "attempts, state, error") == [(1, 0, "oncebox.errors.BrokerError: no")] * 2
        sink.judge = refused()
        await it.turn()
    assert (sink.ids, outbox_ids(shop)) == (["a", "c", "e", "b", "d"], [])


@pytest.mark.parametrize("trouble", ["raises", "answers_short", "hangs"])
async def test_a_sink_in_trouble_confirms_nothing_and_all_is_sent_again(
    shop: Shop, sink: ScriptedSink, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipes, "PUBLISH_TIMEOUT_SECONDS", 0.05)
    setattr(sink, trouble, BrokerUnavailable("gone") if trouble == "raises" else True)
    put(shop, "a", "b")
    async with relay(shop, sink) as it:
        await it.turn()
        assert outbox_ids(shop) == ["a", "b"]
        setattr(sink, trouble, None if trouble == "raises" else False)
        await it.turn()
    assert outbox_ids(shop) == []
    assert sink.asked == [["a", "b"], ["a", "b"]]


async def test_a_refused_row_waits_before_its_next_try(shop: Shop, sink: ScriptedSink) -> None:
    sink.judge = refused("a")
    put(shop, "a")
    async with relay(shop, sink, retry=LATER) as it:
        await it.turn()
        sink.judge = refused()
        # Full jitter may say "at once".
        shop.rows(
            f"UPDATE {shop.table('outbox')} SET due = due + "
            + ("1000000000" if shop.kind.engine == "sqlite" else "interval '1000 s'")
        )
        assert await it.turn() == 0
    assert outbox_ids(shop) == ["a"]


async def test_poison_is_parked_after_its_budget_and_other_keys_go_on(shop: Shop, sink: ScriptedSink) -> None:
    sink.judge = refused("a1")
    put(shop, "a1", "a2", key="a")
    put(shop, "b1", "b2", key="b")
    async with relay(shop, sink) as it:
        await it.turn()
        assert sink.ids == ["b1", "b2"], "a failing head holds its own key, and nothing else"
        for _ in range(3):
            await it.turn()
    assert sink.ids == ["b1", "b2", "a2"]
    assert outbox_rows(shop, "id, state, attempts, error") == [("a1", 2, 3, "oncebox.errors.BrokerError: no")]


async def test_an_outage_parks_nothing(shop: Shop, sink: ScriptedSink) -> None:
    sink.raises = BrokerUnavailable("gone")
    put(shop, "a")
    async with relay(shop, sink) as it:
        for _ in range(6):
            await it.turn()
        sink.raises = None
        await it.turn()
    assert (sink.ids, outbox_ids(shop)) == (["a"], [])


async def test_what_a_sink_can_never_take_is_parked_at_once(shop: Shop, sink: ScriptedSink) -> None:
    sink.judge = lambda message: MessageError("no such topic") if message.id == "a" else None
    put(shop, "a", "b", key="k")
    async with relay(shop, sink) as it:
        await it.turn()
    assert sink.ids == ["b"]
    assert outbox_rows(shop, "id, state, error") == [("a", 2, "oncebox.errors.MessageError: no such topic")]


async def test_kept_rows_are_swept_when_their_time_is_over(shop: Shop, sink: ScriptedSink) -> None:
    put(shop, "a")
    async with relay(shop, sink, keep_seconds=0.02) as it:
        await it.turn()
        assert outbox_rows(shop, "id, state") == [("a", 1)]
        assert await it.turn() == 0, "published rows are not published again"

        async def swept() -> bool:
            it._swept = -100.0
            await it.turn()
            return outbox_ids(shop) == []

        await until(swept)
    assert sink.ids == ["a"]


async def test_a_scheduled_message_is_not_early_and_holds_nobody_up(shop: Shop, sink: ScriptedSink) -> None:
    put(shop, "late", key="k", delay=3600)
    put(shop, "soon", key="k")
    async with relay(shop, sink) as it:
        await it.turn()
        assert sink.ids == ["soon"]
        hour = "3600000000" if shop.kind.engine == "sqlite" else "interval '1 hour'"
        shop.rows(f"UPDATE {shop.table('outbox')} SET due = due - {hour}")
        await it.turn()
    assert (sink.ids, outbox_ids(shop)) == (["soon", "late"], [])


async def test_types_are_routed_by_the_first_pattern_that_fits(shop: Shop) -> None:
    payments, rest = ScriptedSink("payments"), ScriptedSink("rest")
    put(shop, "p", type="payment.captured")
    put(shop, "o", type="order.placed")
    put(shop, "q", type="payment.refunded")
    async with relay(shop, {"payment.*": payments, "order.*": rest, "*.captured": rest}) as it:
        await it.turn()
    assert (payments.ids, rest.ids) == (["p", "q"], ["o"])


async def test_a_type_without_a_route_is_parked_with_the_reason(shop: Shop, sink: ScriptedSink) -> None:
    put(shop, "x", type="parcel.lost")
    put(shop, "p", type="payment.captured")
    async with relay(shop, {"payment.*": sink}) as it:
        await it.turn()
    assert sink.ids == ["p"]
    ((id_, state, error),) = outbox_rows(shop, "id, state, error")
    assert (id_, state) == ("x", 2)
    assert "no sink for type 'parcel.lost'; add a pattern to App(sink=…)" in error


@pytest.mark.parametrize("seed", range(5))
async def test_first_deliveries_of_a_key_are_in_order_whatever_is_refused(
    shop: Shop, sink: ScriptedSink, seed: int
) -> None:
    chance = random.Random(seed)
    ids = [f"{key}-{n:02}" for n in range(12) for key in "abc"]
    for id_ in ids:
        put(shop, id_, key=id_[0])
    for n in range(4):
        put(shop, f"free-{n}")

    def judge(message: Any) -> BaseException | None:
        if chance.random() < 0.4:
            # Half of what is not confirmed has arrived all the same: it comes again, with the same id.
            if chance.random() < 0.5:
                sink.taken.append(message)
            return BrokerUnavailable("confirmation lost")
        return None

    sink.judge = judge
    async with relay(shop, sink, retry=Backoff(attempts=9, base_seconds=0, max_seconds=0)) as it:
        await until(lambda: _turned(it, shop), 30)
    first = list(dict.fromkeys(sink.ids))
    assert sorted(first) == sorted([*ids, *(f"free-{n}" for n in range(4))])
    for key in "abc":
        mine = [id_ for id_ in first if id_.startswith(f"{key}-")]
        assert mine == sorted(mine)


async def _turned(it: runtime.Relay, shop: Shop) -> bool:
    await it.turn()
    return outbox_ids(shop) == []
