"""CloudEvents over HTTP: in headers, in one body, and many in one body."""

import base64
import json
from typing import Any

import pytest

from oncebox import Message, Retry
from oncebox.webhooks import Webhooks, standard, stripe, token
from tests.core.fixtures import inline, on
from tests.core.kit import Call, Shop, effect
from tests.webhooks.kit import (
    PLAIN,
    SECRET,
    bearing,
    cloudevent,
    handled,
    served,
    signed_standard,
    signed_stripe,
)

few = on("sqlite", "psycopg-async")
ONE = "application/cloudevents+json; charset=utf-8"
MANY = "application/cloudevents-batch+json"


def hooked(shop: Shop, verify: Any = None, body: Any = effect) -> tuple[Webhooks, list[Message]]:
    seen: list[Message] = []

    async def looks(call: Call) -> None:
        seen.append(call.message)
        await body(call)

    shop.handler(billing := shop.consumer())(looks)
    hooks = Webhooks(shop.app)
    hooks.add("/hook", billing, verify=verify or token(PLAIN))
    return hooks, seen


@few
async def test_binary_and_structured_are_one_message(shop: Shop) -> None:
    hooks, seen = hooked(shop)
    binary = bearing(
        ce_specversion="1.0",
        ce_id="ce-1",
        ce_source="/shop",
        ce_type="payment",
        content_type="application/json",
    )
    async with served(hooks) as client:
        first = await client.post("/hook", content=b'{"amount":5}', headers=binary)
        whole = json.dumps(cloudevent(), separators=(",", ":")).encode()
        second = await client.post("/hook", content=whole, headers=bearing(content_type=ONE))
        await handled(shop)
    assert first.is_success
    assert second.json()["outcome"] in ("duplicate", "waiting")
    assert [(m.source, m.id, m.type, m.payload) for m in seen] == [
        ("/shop", "ce-1", "payment", b'{"amount":5}')
    ]


@few
async def test_percent_encoded_attributes_and_binary_data(shop: Shop) -> None:
    hooks, seen = hooked(shop)
    headers = bearing(ce_id="a%20b%C3%A9", ce_source="/s", ce_type="t", content_type="application/json")
    encoded = cloudevent("b64", data_base64=base64.b64encode(b'{"x":1}').decode())
    del encoded["data"]
    async with served(hooks) as client:
        assert (await client.post("/hook", content=b"{}", headers=headers)).is_success
        body = json.dumps(encoded).encode()
        assert (await client.post("/hook", content=body, headers=bearing(content_type=ONE))).is_success
        await handled(shop)
    assert {(m.id, m.payload) for m in seen} == {("a bé", b"{}"), ("b64", b'{"x":1}')}


@few
@pytest.mark.parametrize("signed", [False, True])
async def test_a_batch_with_one_bad_entry_takes_the_rest_and_keeps_it(shop: Shop, signed: bool) -> None:
    hooks, _ = hooked(shop, standard(SECRET) if signed else None)
    entries: list[Any] = [
        cloudevent("a"),
        {"specversion": "1.0", "type": "x"},
        17,
        cloudevent("b"),
        cloudevent("a"),
    ]
    body = json.dumps(entries).encode()
    async with served(hooks) as client:

        async def post() -> Any:
            headers = signed_standard(body) if signed else bearing()
            return await client.post("/hook", content=body, headers={**headers, "content-type": MANY})

        first = await post()
        await handled(shop)
        again = await post()
    known, new = ("duplicate", "processed") if shop.mode == "inline" else ("waiting", "stored")
    assert [entry["outcome"] for entry in first.json()["outcomes"]] == [new, "dead", "dead", new, known]
    assert first.status_code == (200 if shop.mode == "inline" else 202)
    assert [e["outcome"] for e in again.json()["outcomes"]] == ["duplicate", "dead", "dead"] + [
        "duplicate"
    ] * 2
    assert again.status_code == 200
    assert shop.effects() == {"a": 1, "b": 1}
    assert [row[1] for row in shop.dead()] == ["no identity"] * 2


@on("sqlite", "psycopg-async")
@inline
async def test_a_batch_with_an_entry_that_must_come_again_is_503_and_then_done(shop: Shop) -> None:
    fails = True

    async def sometimes(call: Call) -> None:
        await effect(call)
        if call.message.id == "b" and fails:
            raise Retry("not yet", after=4)

    hooks, _ = hooked(shop, body=sometimes)
    body = json.dumps([cloudevent(name) for name in "abc"]).encode()
    async with served(hooks) as client:
        headers = bearing(content_type=MANY)
        answer = await client.post("/hook", content=body, headers=headers)
        outcomes = [entry["outcome"] for entry in answer.json()["outcomes"]]
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "4")
        assert outcomes == ["processed", "retry", "processed"]
        fails = False
        answer = await client.post("/hook", content=body, headers=headers)
        outcomes = [entry["outcome"] for entry in answer.json()["outcomes"]]
        assert (answer.status_code, outcomes) == (200, ["duplicate", "processed", "duplicate"])
    assert shop.effects() == {"a": 1, "b": 1, "c": 1}


@on("sqlite")
@inline
async def test_what_is_no_batch_or_no_format_of_ours_is_refused(shop: Shop) -> None:
    hooks, _ = hooked(shop)
    async with served(hooks) as client:
        for media, body, status in (
            (MANY, b"{}", 400),
            (MANY, b"not json", 400),
            (MANY, b"[" * 5000, 400),
            (MANY, b"[]", 200),
            (MANY, b"[" + b"1," * 1000 + b"1]", 413),
            ("application/cloudevents+avro", b"x", 415),
            ("application/cloudevents-batch+protobuf", b"x", 415),
        ):
            answer = await client.post("/hook", content=body, headers=bearing(content_type=media))
            assert answer.status_code == status, (media, body[:10])
    assert shop.count("ledger") == shop.count("dead") == 0


@on("sqlite")
@inline
async def test_too_large_for_the_consumer_is_413_alone_and_dead_in_a_batch(shop: Shop) -> None:
    shop.handler(billing := shop.consumer(payload_bytes_max=100))(effect)
    hooks = Webhooks(shop.app)
    hooks.add("/hook", billing, verify=token(PLAIN))
    large = cloudevent("large", data={"x": "y" * 200})
    async with served(hooks) as client:
        alone = await client.post(
            "/hook", content=json.dumps(large).encode(), headers=bearing(content_type=ONE)
        )
        assert alone.status_code == 413
        assert shop.count("ledger") == shop.count("dead") == 0
        body = json.dumps([cloudevent("a"), large]).encode()
        answer = await client.post("/hook", content=body, headers=bearing(content_type=MANY))
        assert [entry["outcome"] for entry in answer.json()["outcomes"]] == ["processed", "dead"]
    assert shop.effects() == {"a": 1}


@on("sqlite")
@inline
async def test_under_a_signature_the_signed_bytes_say_what_it_is(shop: Shop) -> None:
    """Content type and `ce-` headers can be changed by whoever saw the request; the message stays the same."""
    hooks, seen = hooked(shop, standard(SECRET))
    body = json.dumps(cloudevent("ce-1")).encode()
    forged = {"ce-id": "other", "ce-source": "/other", "ce-type": "refund", "ce-specversion": "1.0"}
    async with served(hooks) as client:
        outcomes = []
        for content_type, more in (
            (ONE, {}),
            ("application/json", {}),
            ("text/plain", forged),
            (ONE, forged),
        ):
            headers = {**signed_standard(body), "content-type": content_type, **more}
            answer = await client.post("/hook", content=body, headers=headers)
            outcomes.append(answer.json().get("outcome"))
        wrong = {**signed_standard(body), "content-type": MANY}
        assert (await client.post("/hook", content=body, headers=wrong)).status_code == 400
    assert outcomes == ["processed", "duplicate", "duplicate", "duplicate"]
    assert [(m.source, m.id, m.type) for m in seen] == [("/shop", "ce-1", "payment")]


@on("sqlite")
@inline
async def test_binary_under_a_signature_is_named_by_what_is_signed(shop: Shop) -> None:
    hooks, seen = hooked(shop, standard(SECRET))
    hooks.add("/stripe", shop.app.consumers["billing"], verify=stripe(PLAIN))
    body = b'{"amount":5}'
    attributes = {"ce-id": "ce-1", "ce-source": "/shop", "ce-type": "payment", "ce-specversion": "1.0"}
    async with served(hooks) as client:
        outcomes = []
        for more in ({}, {"ce-id": "ce-2"}, {"ce-source": "/other"}, {"ce-type": "refund"}):
            headers = {**signed_standard(body), **attributes, **more}
            answer = await client.post("/hook", content=body, headers=headers)
            outcomes.append((answer.status_code, answer.json()["outcome"]))
        # A signature without an id, over a body without one: nothing signed names it.
        answer = await client.post("/stripe", content=body, headers={**signed_stripe(body), **attributes})
        assert answer.status_code == 422
    assert outcomes == [(200, "processed"), (200, "duplicate"), (200, "duplicate"), (422, "dead")]
    assert [(m.source, m.id, m.type) for m in seen] == [("", "msg-1", "payment")]
