"""tx.publish: a row in the outbox if and only if the handler's transaction committed."""

from datetime import timedelta
from typing import Any

import pytest

from oncebox import Backoff, Status
from oncebox.codec import unpack_headers
from oncebox.core.steps import Commit
from oncebox.errors import Conflict, MessageError, TooLarge, UsageError
from oncebox.message import PAYLOAD_BYTES_MAX
from oncebox.runtime.mailbox import ThreadMailbox
from oncebox.runtime.workers import inline_turn
from tests.core.fixtures import inline
from tests.core.kit import Call, Shop, event
from tests.outgoing.kit import outbox_ids, outbox_rows


async def test_is_there_once_the_handler_has_committed(shop: Shop) -> None:
    billing = shop.consumer()

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        await call.db.effect(call.message.id)
        assert outbox_ids(shop) == []
        return call.tx.publish("receipt", {"n": 1}, key=7, topic="mail", headers={"x": "y"}, id="out-1")

    outcome = await shop.settle(billing, event())
    assert (outcome.status, outcome.result) == (Status.PROCESSED, "out-1")
    columns = "id, source, type, topic, key, state, attempts, content_type"
    assert outbox_rows(shop, columns) == [("out-1", "shop", "receipt", "mail", "7", 0, 0, "application/json")]
    assert bytes(outbox_rows(shop, "payload")[0][0]) == b'{"n":1}'
    await shop.deliver(billing, event())
    assert outbox_ids(shop) == ["out-1"], "a duplicate publishes nothing"


async def test_an_id_of_its_own_is_ordered_by_time(shop: Shop) -> None:
    billing = shop.consumer()

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        return [call.tx.publish("receipt", {}) for _ in range(3)]

    outcome = await shop.settle(billing, event())
    assert outcome.result == outbox_ids(shop)
    assert len(set(outcome.result)) == 3
    assert [id_[14] for id_ in outcome.result] == ["7"] * 3


async def test_is_not_there_when_the_handler_failed(shop: Shop) -> None:
    billing = shop.consumer(retry=Backoff(attempts=3, base_seconds=0, max_seconds=0))
    runs: list[str] = []

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        runs.append(call.tx.publish("receipt", {}, id=f"out-{len(runs)}"))
        if len(runs) == 1:
            raise ValueError("not yet")

    assert (await shop.settle(billing, event())).status is Status.RETRY
    assert outbox_ids(shop) == []
    assert (await shop.settle(billing, event())).status is Status.PROCESSED
    assert outbox_ids(shop) == ["out-1"]


async def test_a_run_that_was_repeated_publishes_once(shop: Shop) -> None:
    billing = shop.consumer()
    runs: list[str] = []

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        runs.append(call.tx.publish("receipt", {}, id="out"))
        if len(runs) < 3:
            raise Conflict("deadlock detected")

    assert (await shop.settle(billing, event())).status is Status.PROCESSED
    assert (len(runs), outbox_ids(shop)) == (3, ["out"])


async def test_a_culprit_of_a_batch_publishes_nothing_and_its_neighbours_once(shop: Shop) -> None:
    billing = shop.consumer(batch=10)

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        call.tx.publish("receipt", {}, id=f"out-{call.message.id}")
        await call.db.effect(call.message.id)
        if call.message.id in ("e2", "e4"):
            raise ValueError("culprit")

    await shop.settle_all(billing, [event(f"e{n}") for n in range(6)])
    assert sorted(outbox_ids(shop)) == ["out-e0", "out-e1", "out-e3", "out-e5"]
    assert set(shop.effects().values()) == {1}
    assert len(shop.effects()) == 4


@inline
async def test_what_a_run_said_that_was_undone_does_not_go_out_with_the_next(shop: Shop) -> None:
    billing = shop.consumer(batch=8)

    @shop.batch_handler(billing, "many")
    async def many(call: Call) -> None:
        for message in call.message:
            call.tx.publish("receipt", {"for": message.id})

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> None:
        await call.db.effect(call.message.id)

    mailbox, conflicts = ThreadMailbox(), [Conflict("as after a deadlock")]

    def through(perform: Any) -> Any:
        def one(step: Any) -> Any:
            if isinstance(step, Commit) and conflicts:
                raise conflicts.pop()
            return perform(step)

        return one

    # Two lists, because x is between them; when x is done elsewhere, one list of both.
    sent = (event("a", type="many"), event("x"), event("b", type="many"))
    mailbox.items.extend(billing.intake.from_message(each) for each in sent)
    await shop.perform(billing, lambda work: inline_turn(work, mailbox), mailbox=mailbox, through=through)
    await shop.deliver(billing, event("x"))
    while mailbox.items:
        await shop.perform(billing, lambda work: inline_turn(work, mailbox), mailbox=mailbox)
    assert sorted(bytes(row[0]) for row in outbox_rows(shop, "payload")) == [b'{"for":"a"}', b'{"for":"b"}']


async def test_a_list_handler_publishes_with_its_batch(shop: Shop) -> None:
    billing = shop.consumer(batch=10)

    @shop.batch_handler(billing, "paid")
    async def paid(call: Call) -> Any:
        for message in call.message:
            call.tx.publish("receipt", {}, id=f"out-{message.id}")
        if "e2" in [message.id for message in call.message]:
            raise ValueError("culprit")

    await shop.settle_all(billing, [event(f"e{n}") for n in range(4)])
    assert sorted(outbox_ids(shop)) == ["out-e0", "out-e1", "out-e3"]


async def test_context_is_carried_on(shop: Shop) -> None:
    billing = shop.consumer()
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        call.tx.publish("receipt", {}, headers={"mine": "1"})

    await shop.settle(billing, event(headers={"traceparent": trace}))
    headers = dict(unpack_headers(bytes(outbox_rows(shop, "headers")[0][0])))
    assert headers == {
        "mine": b"1", "traceparent": trace, "ce-correlationid": b"evt-1", "ce-causationid": b"evt-1"
    }  # fmt: skip


async def test_a_correlation_that_is_there_goes_on(shop: Shop) -> None:
    billing = shop.consumer()

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        call.tx.publish("receipt", {})

    await shop.settle(billing, event(headers={"ce-correlationid": "order-1"}))
    headers = dict(unpack_headers(bytes(outbox_rows(shop, "headers")[0][0])))
    assert (headers["ce-correlationid"], headers["ce-causationid"]) == (b"order-1", b"evt-1")


@inline
@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        ({"payload": object()}, MessageError, "payload of type object has no JSON form"),
        ({"payload": float("nan")}, MessageError, "no JSON form"),
        ({"payload": b"x" * (PAYLOAD_BYTES_MAX + 1)}, TooLarge, "16,777,217 bytes; the limit is 16,777,216"),
        ({"type": ""}, MessageError, "needs a type"),
        ({"type": "a\0b"}, MessageError, "NUL"),
        ({"ordered": True}, UsageError, "ordered=True needs a key"),
        ({"delay": -1}, UsageError, "delay=-1: between nothing and a year"),
        ({"delay": timedelta(days=400)}, UsageError, "between nothing and a year"),
        ({"delay": float("nan")}, UsageError, "between nothing and a year"),
        ({"id": ""}, MessageError, "id can't be empty"),
        ({"key": "k" * 513}, TooLarge, "key is 513 bytes"),
        ({"topic": "a\0b"}, MessageError, "topic can't hold a NUL"),
        ({"headers": {"x": object()}}, MessageError, "no JSON form"),
    ],
)
async def test_what_cannot_be_sent_says_so_where_it_was_written(
    shop: Shop, words: dict[str, Any], error: type[Exception], text: str
) -> None:
    billing = shop.consumer()

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        with pytest.raises(error, match=text):
            call.tx.publish(**{"type": "receipt", "payload": {}, **words})
        call.tx.publish("receipt", {}, id="fine")

    assert (await shop.settle(billing, event())).error is None
    assert outbox_ids(shop) == ["fine"]


async def test_after_the_handler_has_returned_it_is_too_late(shop: Shop) -> None:
    billing = shop.consumer()
    kept: list[Any] = []

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        kept.append(call.tx)

    await shop.settle(billing, event())
    with pytest.raises(UsageError, match=r"tx\.publish after the handler has returned"):
        kept[0].publish("receipt", {})
    with pytest.raises(UsageError, match=r"tx\.send after the handler has returned"):
        kept[0].send("mailer", "receipt", {})
    assert outbox_ids(shop) == []


async def test_without_a_sink_it_names_what_is_missing(kind: str, mode: str, shop_url: str) -> None:
    shop = Shop(kind, shop_url, mode)
    billing = shop.consumer()

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> Any:
        call.tx.publish("receipt", {})

    outcome = await shop.settle(billing, event())
    await shop.close()
    assert outcome.status is Status.DEAD
    assert "needs somewhere to publish to: App(…, sink=…)" in str(outcome.error)
