"""Whatever arrives is answered, kept and explained; no input ends a worker or is dropped."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pydantic
import pytest

from oncebox import Consumer, Message, Status
from oncebox.core.stored import bury_unknown
from oncebox.errors import MessageError, TooLarge
from tests.core.fixtures import inline, stored
from tests.core.kit import Call, Shop, effect, event
from tests.waiting import eventually_async


@dataclass
class Order:
    id: int
    items: list[str]


class Struct(msgspec.Struct):
    id: int


class Model(pydantic.BaseModel):
    id: int


UNDECODABLE = {
    "NaN": b'{"id": NaN}',
    "infinity": b'{"id": 1e999, "x": Infinity}',
    "invalid UTF-8": b'{"id": "\xff\xfe"}',
    "100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "100,000 deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "not JSON": b"<order/>",
    "truncated": b'{"id": 1',
    "empty": b"",
    "a number": b"7",
    "huge number": b'{"id": ' + b"9" * 5_000 + b"}",
}


@pytest.mark.parametrize("payload", [Struct, dict[str, int], Model], ids=["struct", "dict", "model"])
async def test_what_does_not_decode_is_dead_and_the_worker_lives(shop: Shop, payload: Any) -> None:
    billing = shop.consumer()
    shop.handler(billing, payload=payload)(effect)
    messages = [event(name, payload=body) for name, body in UNDECODABLE.items()]

    outcomes = await shop.settle_all(billing, [*messages, event("good", payload={"id": 1})])

    for name in UNDECODABLE:
        assert [(o.status, o.reason) for o in outcomes[name]] == [(Status.DEAD, "undecodable")], name
    assert [outcome.status for outcome in outcomes["good"]] == [Status.PROCESSED]
    assert shop.effects() == {"good": 1}
    kept = {
        identity: bytes(body)
        for identity, body in shop.rows(f"SELECT message_id, payload FROM {shop.table('dead')}")
    }
    assert kept == UNDECODABLE


async def test_the_wrong_shape_is_dead_and_the_error_says_where_without_the_value(shop: Shop) -> None:
    billing = shop.consumer()
    shop.handler(billing, payload=Order)(effect)
    outcome = await shop.settle(billing, event(payload={"id": 1, "items": ["a", 77123]}))
    assert (outcome.status, outcome.reason) == (Status.DEAD, "undecodable")
    assert "items" in str(outcome.error)
    assert "77123" not in str(outcome.error)


async def test_a_nul_escape_in_json_is_taken_as_it_is(shop: Shop) -> None:
    billing = shop.consumer()
    seen = []

    @shop.handler(billing)
    async def looks(call: Call) -> None:
        seen.append(call.payload["text"])

    assert (await shop.settle(billing, event(payload=b'{"text": "a\\u0000b"}'))).status is Status.PROCESSED
    assert seen == ["a\0b"]


@inline
async def test_inline_an_unknown_type_is_dead_naming_what_is_handled(shop: Shop) -> None:
    billing = shop.consumer()
    shop.handler(billing, "paid", "refunded")(effect)
    outcome = await shop.deliver(billing, event(type="shipped"))
    assert (outcome.status, outcome.reason) == (Status.DEAD, "unknown type")
    assert "'shipped'" in str(outcome.error)
    assert "'paid', 'refunded'" in str(outcome.error)
    assert (await shop.deliver(billing, event(type="shipped"))).status is Status.DEAD
    assert len(shop.dead()) == 1


@stored
async def test_stored_an_unknown_type_waits_for_a_deployment_and_then_is_dead(shop: Shop) -> None:
    billing = shop.consumer(unknown_type_seconds=3600.0)
    hasty = shop.consumer("hasty", unknown_type_seconds=0.001)
    for consumer in (billing, hasty):
        shop.handler(consumer, "paid")(effect)
        assert (await shop.deliver(consumer, event(type="shipped"))).status is Status.STORED
        assert await shop.work_off(consumer) == []

    async def bury(consumer: Consumer) -> int:
        return await shop.perform(consumer, lambda work: bury_unknown(work, ["paid"]))

    buried: Callable[[], Any] = partial(bury, hasty)
    await eventually_async(buried)
    assert await bury(billing) == 0
    assert (await shop.deliver(billing, event(type="shipped"))).status is Status.WAITING
    outcome = await shop.deliver(hasty, event(type="shipped"))
    assert (outcome.status, outcome.reason) == (Status.DEAD, "unknown type")
    ((_, reason, _, text),) = shop.dead()
    assert reason == "unknown type"
    assert "'shipped'" in text


@stored
async def test_types_of_a_catch_all_and_of_a_long_handler_are_each_taken(shop: Shop) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    shop.handler(billing, "report", long=True)(effect)
    await shop.deliver(billing, event("short", type="anything"))
    await shop.deliver(billing, event("long", type="report"))

    assert [item.message.id for item in await shop.work_off(billing)] == ["short"]
    assert [item.message.id for item in await shop.work(billing, long=True)] == ["long"]
    assert shop.effects() == {"short": 1, "long": 1}


async def test_a_payload_over_the_limit_is_refused_to_the_caller_and_at_the_limit_it_is_taken(
    shop: Shop,
) -> None:
    billing = shop.consumer(payload_bytes_max=100)
    shop.handler(billing, payload=bytes)(effect)
    assert (await shop.settle(billing, event(payload=b"x" * 100))).status is Status.PROCESSED
    with pytest.raises(TooLarge, match="101 bytes; the limit is 100"):
        await shop.deliver(billing, event("evt-2", payload=b"x" * 101))


async def test_headers_that_are_not_text_and_repeat_reach_the_handler_as_they_came(shop: Shop) -> None:
    billing = shop.consumer()
    headers = (("x", b"\xff\x00"), ("x", b"2"), ("X", b""), ("ümlaut", b"3"))
    seen = []

    @shop.handler(billing)
    async def looks(call: Call) -> None:
        seen.append(call.message.headers)

    assert (await shop.settle(billing, event(headers=headers))).status is Status.PROCESSED
    assert seen == [headers]


async def test_a_message_reaches_its_handler_whole(shop: Shop) -> None:
    billing = shop.consumer()
    seen = []

    @shop.handler(billing, payload=bytes)
    async def looks(call: Call) -> None:
        seen.append((call.payload, call.message, call.tx.consumer, call.tx.attempt))

    message = event(
        payload=bytes(range(256)), source="payments", key="k", content_type="application/octet-stream",
        provenance={"queue": "q", "n": [1, None]},
    )  # fmt: skip
    await shop.settle(billing, message)
    assert seen == [(bytes(range(256)), message, "billing", 1)]


@pytest.mark.parametrize(
    ("identity", "text"),
    [
        ("", "empty"),
        ("x" * 10_000, "10,000 bytes; the limit is 512"),
        ("a\0b", "NUL"),
        (7, "text, not int"),
        (None, "not NoneType"),
    ],
    ids=["empty", "10 kB", "NUL", "int", "None"],
)
def test_an_id_that_can_not_be_a_key_is_refused_with_a_reason(identity: Any, text: str) -> None:
    with pytest.raises(MessageError, match=text):
        Message(id=identity)


async def test_an_id_at_the_limit_is_stored_and_found_again(shop: Shop) -> None:
    billing = shop.consumer("b" * 63)
    shop.handler(billing)(effect)
    # Neither compressible nor short: as large as an index row gets.
    message = event("\u00e9" * 256, source="\u4e2d" * 170, type="t" * 255, key="k" * 512)
    assert (await shop.settle(billing, message)).status is Status.PROCESSED
    assert (await shop.deliver(billing, message)).status is Status.DUPLICATE


@pytest.mark.parametrize("content_type", ["text/\0plain", "a\ud800b"], ids=["NUL", "surrogate"])
async def test_a_content_type_that_no_database_takes_does_not_stop_the_worker(
    shop: Shop, content_type: str
) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    try:
        message = event(content_type=content_type, payload=b"not JSON")
    except MessageError:
        return  # refused at the door, with a reason
    outcome = await shop.settle(billing, message)
    assert (outcome.status, outcome.reason) == (Status.DEAD, "undecodable")
