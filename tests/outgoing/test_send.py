"""tx.send: a message for another consumer of the same database, stored in the same transaction."""

from typing import Any

import pytest

from oncebox import Backoff, Status
from oncebox.errors import Conflict, UsageError
from tests.core.fixtures import inline
from tests.core.kit import Call, Shop, effect, event


def _queued(shop: Shop) -> list[tuple[Any, ...]]:
    return shop.rows(f"SELECT consumer, source, type, key FROM {shop.table('queue')} ORDER BY seq")


async def test_is_stored_for_the_other_consumer_and_handled_there(shop: Shop) -> None:
    billing, mailer = shop.consumer("billing"), shop.consumer("mailer", mode="stored")

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        assert _queued(shop) == ([] if shop.mode == "inline" else [("billing", "", "paid", None)])
        return call.tx.send("mailer", "receipt", {"n": 1}, key=5, headers={"x": "y"})

    seen: list[Any] = []

    @shop.handler(mailer, "receipt")
    async def receipt(call: Call) -> Any:
        seen.append((call.payload, call.message.header("x"), call.message.header("ce-causationid")))
        await call.db.effect(call.message.id)

    sent = (await shop.settle(billing, event())).result
    assert _queued(shop) == [("mailer", "shop", "receipt", "5")]
    (item,) = await shop.work_off(mailer)
    assert item.message.id == sent
    assert (seen, shop.effects()) == ([({"n": 1}, b"y", b"evt-1")], {sent: 1})


async def test_is_not_there_when_the_handler_failed_and_has_the_same_id_each_time(shop: Shop) -> None:
    billing = shop.consumer(retry=Backoff(attempts=5, base_seconds=0, max_seconds=0))
    shop.consumer("mailer", mode="stored")
    ids: list[str] = []

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        ids.extend(call.tx.send("mailer", "receipt", {}) for _ in range(2))
        if len(ids) == 2:
            raise ValueError("not yet")
        if len(ids) == 4:
            raise Conflict("deadlock detected")

    assert (await shop.settle(billing, event())).status is Status.RETRY
    assert [row for row in _queued(shop) if row[0] == "mailer"] == []
    assert (await shop.settle(billing, event())).status is Status.PROCESSED
    assert len(_queued(shop)) == 2
    assert ids[:2] * 3 == ids
    assert ids[0] != ids[1]


async def test_neighbours_of_a_culprit_send_once(shop: Shop) -> None:
    billing, mailer = shop.consumer(batch=10), shop.consumer("mailer", mode="stored")
    shop.handler(mailer, "receipt")(effect)

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        call.tx.send("mailer", "receipt", {}, id=f"to-{call.message.id}")
        if call.message.id == "e1":
            raise ValueError("culprit")

    await shop.settle_all(billing, [event(f"e{n}") for n in range(4)])
    await shop.work_off(mailer)
    assert shop.effects() == {"to-e0": 1, "to-e2": 1, "to-e3": 1}


async def test_the_same_id_twice_is_one_message(shop: Shop) -> None:
    billing, mailer = shop.consumer(), shop.consumer("mailer", mode="stored")
    shop.handler(mailer, "receipt")(effect)

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        call.tx.send("mailer", "receipt", {}, id="one")
        call.tx.send("mailer", "receipt", {}, id="one")

    assert (await shop.settle(billing, event())).status is Status.PROCESSED
    assert (await shop.settle(billing, event("evt-2"))).status is Status.PROCESSED
    await shop.work_off(mailer)
    assert shop.effects() == {"one": 1}


@pytest.mark.parametrize("known", ["by an earlier message", "in the same transaction"])
async def test_the_same_id_with_another_payload_is_buried_as_a_conflict_and_never_dropped(
    shop: Shop, known: str
) -> None:
    billing, mailer = shop.consumer(), shop.consumer("mailer", mode="stored")
    shop.consumer("archive", mode="stored")
    shop.handler(mailer, "receipt", "reminder")(effect)

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        payloads: list[tuple[str, Any]] = [
            ("receipt", {"n": 1}),
            ("receipt", {"n": 2}),
            ("reminder", {"n": 1}),
        ]
        if known == "by an earlier message":
            payloads = [("receipt", {"n": 1})] if call.message.id == "evt-1" else payloads
        for kind, payload in payloads:
            call.tx.send("mailer", kind, payload, id="one", key="k")
            call.tx.send("archive", "receipt", {"n": 1}, id="one")

    for id_ in ("evt-1", "evt-2", "evt-3"):
        assert (await shop.settle(billing, event(id_))).status is Status.PROCESSED
    await shop.work_off(mailer)
    assert shop.effects() == {"one": 1}
    buried = shop.rows(
        f"SELECT consumer, source, message_id, type, key, payload, reason, error_type, error FROM "
        f"{shop.table('dead')} ORDER BY type, payload"
    )
    assert [(*row[:5], bytes(row[5]), *row[6:8]) for row in buried] == [
        ("mailer", "shop", "one", kind, "k", payload, "conflict", "oncebox.errors.PayloadConflict")
        for kind, payload in (("receipt", b'{"n":2}'), ("reminder", b'{"n":1}'))
    ]
    assert buried[1][8] == (
        "consumer 'mailer': id 'one' was sent with another payload or type than the one that is known (this type "
        "'reminder'); known type: receipt"
    )


async def test_what_is_sent_and_what_comes_by_a_broker_are_one_message_by_the_receivers_own_measure(
    shop: Shop,
) -> None:
    billing = shop.consumer()
    mailers = {
        how: shop.consumer(f"mailer-{how}", mode="stored", fingerprint=how) for how in ("raw", "canonical")
    }

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        for mailer in mailers.values():
            call.tx.send(mailer.name, "receipt", b'{"b": 1, "a": 2}', id="one")

    await shop.settle(billing, event())
    elsewhere = event("one", type="receipt", source="shop", payload=b'{"a":2,"b":1}')
    said = {how: (await shop.deliver(mailer, elsewhere)).status for how, mailer in mailers.items()}
    assert said == {"raw": Status.DEAD, "canonical": Status.WAITING}, (
        "a conflict, and the same one that waits"
    )
    again = event("evt-2")
    await shop.settle(billing, again)
    dead = shop.rows(f"SELECT consumer, reason FROM {shop.table('dead')}")
    assert dead == [("mailer-raw", "conflict")]


async def test_a_consumer_may_send_to_itself(shop: Shop) -> None:
    billing = shop.consumer(mode="stored")

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        await call.db.effect(call.message.id)
        if call.message.id == "evt-1":
            call.tx.send("billing", "paid", {}, id="evt-2")

    await shop.deliver(billing, event())
    await shop.work_off(billing)
    assert shop.effects() == {"evt-1": 1, "evt-2": 1}


@inline
async def test_an_unknown_or_inline_consumer_is_refused(shop: Shop) -> None:
    billing = shop.consumer()
    shop.consumer("inliner", mode="inline")
    shop.consumer("mailer", mode="stored")

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        for name in ("nobody", "inliner"):
            text = rf"""tx\.send\('{name}', …\) needs a consumer of this app with mode="stored"; there are: mailer"""
            with pytest.raises(UsageError, match=text):
                call.tx.send(name, "receipt", {})

    outcome = await shop.settle(billing, event())
    assert outcome.error is None
    assert shop.count("queue") == 0
