"""Requests that are made to get past the checks, to use them up, or to be two messages at once."""

import asyncio
import time
from typing import Any

import pytest

from oncebox import Message
from oncebox.identity import Identity, header
from oncebox.webhooks import Webhooks, github, standard, stripe, token
from oncebox.webhooks import asgi as limits
from tests.core.fixtures import inline, on
from tests.core.kit import Call, Shop, effect
from tests.webhooks.kit import (
    BODY,
    PLAIN,
    SECRET,
    as_bytes,
    bearing,
    raw,
    served,
    signed_github,
    signed_standard,
    signed_stripe,
)

pytestmark = [on("sqlite"), inline]


def hooked(shop: Shop, verify: Any = None, **words: Any) -> Webhooks:
    shop.handler(billing := shop.consumer())(effect)
    hooks = Webhooks(shop.app)
    hooks.add("/hook", billing, verify=verify or standard(SECRET), **words)
    return hooks


def head(headers: dict[str, str], *more: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in more)
    return b"POST /hook HTTP/1.1\r\nhost: x\r\n" + as_bytes(headers) + lines.encode("latin-1") + b"\r\n"


def untouched(shop: Shop) -> bool:
    return all(shop.count(table) == 0 for table in ("ledger", "queue", "dead", "attempt"))


async def test_headers_that_only_look_alike_are_not_the_header(shop: Shop) -> None:
    async with served(hooked(shop)) as client:
        for missing in ("webhook-id", "webhook-timestamp", "webhook-signature"):
            for instead in (None, "{}x", "x-{}", "{}-"):
                headers = signed_standard()
                value = headers.pop(missing)
                if instead is not None:
                    headers[instead.format(missing)] = value
                answer = await client.post("/hook", content=BODY, headers=headers)
                assert answer.status_code == 401, (missing, instead)
    assert untouched(shop)


async def test_an_underscore_is_no_hyphen(shop: Shop) -> None:
    headers = signed_standard()
    headers["webhook_id"] = headers.pop("webhook-id")
    async with served(hooked(shop)) as client:
        assert (await client.post("/hook", content=BODY, headers=headers)).status_code == 401
    async with served(hooked_token(shop)) as client:
        # A proxy that strips `ce-id` may let this one pass.
        sneaky = bearing(content_type="application/json") | {"ce_id": "a", "ce_source": "b"}
        answer = await client.post("/token", content=BODY, headers=sneaky)
        assert (answer.status_code, answer.json()["reason"]) == (422, "no identity")
    assert shop.count("ledger") == shop.count("dead") == 1


def hooked_token(shop: Shop) -> Webhooks:
    billing = shop.app.consumers["billing"]
    hooks = Webhooks(shop.app, prefix="/other")
    hooks.add("/token", billing, verify=token(PLAIN))
    return hooks


async def test_a_repeated_header_is_refused_whichever_comes_first(shop: Shop) -> None:
    async with served(hooked(shop)) as client:
        for twice in ("webhook-id", "webhook-timestamp", "webhook-signature"):
            good, bad = list(signed_standard().items()), (twice, "msg-2" if twice == "webhook-id" else "1")
            for headers in ([*good, bad], [bad, *good]):
                answer = await client.post("/hook", content=BODY, headers=headers)
                assert answer.status_code == 401, headers
    assert untouched(shop)


async def test_what_decides_how_a_body_is_read_is_there_once(shop: Shop) -> None:
    async with served(hooked(shop, token(PLAIN))) as client:
        for name in ("content-type", "content-encoding", "ce-id", "ce-source", "ce-type"):
            headers = [*bearing(ce_id="1", ce_source="/s", ce_type="t").items(), (name, "a"), (name, "b")]
            answer = await client.post("/hook", content=BODY, headers=headers)
            assert (answer.status_code, "times" in answer.text) == (400, True), name
    assert untouched(shop)


async def test_a_repeated_token_is_refused(shop: Shop) -> None:
    pairs = [("authorization", f"Bearer {PLAIN}"), ("authorization", "Bearer x")]
    async with served(hooked(shop, token(PLAIN))) as client:
        assert (await client.post("/hook", content=BODY, headers=pairs)).status_code == 401


async def test_too_many_or_too_long_headers_are_431_before_anything_is_checked(shop: Shop) -> None:
    many = {f"x-{n}": "a" for n in range(130)}
    async with served(hooked(shop)) as client:
        answer = await client.post("/hook", content=BODY, headers={**signed_standard(), **many})
        assert answer.status_code == 431
        # The server itself ends what is longer still.
        answer_bytes = await raw(client, head(signed_standard(), "x: " + "a" * 200_000))
        assert answer_bytes == b"" or answer_bytes.startswith(b"HTTP/1.1 400")
        fine = {f"x-{n}": "a" for n in range(100)}
        assert (await client.post("/hook", content=BODY, headers=signed_standard() | fine)).is_success


async def test_a_body_at_the_limit_is_taken_and_one_byte_more_is_not(shop: Shop) -> None:
    limit = len(BODY) + 10
    async with served(hooked(shop, body_bytes_max=limit)) as client:
        for extra, status in ((10, 200), (11, 413)):
            body = BODY + b" " * extra
            headers = signed_standard(body, name=f"msg-{extra}")
            assert (await client.post("/hook", content=body, headers=headers)).status_code == status
    assert shop.effects() == {"msg-10": 1}


async def test_an_over_long_body_is_413_without_reading_it(shop: Shop) -> None:
    async with served(hooked(shop)) as client:
        # Nothing of the body is ever sent: only who does not wait for it can answer.
        answer = await raw(client, head(signed_standard(), "content-length: 99999999999"))
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in answer.lower()
    assert untouched(shop)


async def test_a_chunked_body_is_413_as_soon_as_it_is_over_the_limit(shop: Shop) -> None:
    chunk = b"1000\r\n" + b"a" * 4096 + b"\r\n"
    async with served(hooked(shop, body_bytes_max=10_000)) as client:
        # The last chunk never comes.
        request = head(signed_standard(), "transfer-encoding: chunked") + chunk * 3
        assert (await raw(client, request)).startswith(b"HTTP/1.1 413")
    assert untouched(shop)


async def test_a_chunked_body_is_signed_as_a_whole(shop: Shop) -> None:
    async def parts() -> Any:
        for at in range(0, len(BODY), 7):
            yield BODY[at : at + 7]

    async with served(hooked(shop)) as client:
        answer = await client.post("/hook", content=parts(), headers=signed_standard())
        assert answer.status_code == 200
    assert shop.effects() == {"msg-1": 1}


async def test_a_request_whose_length_is_ambiguous_is_never_taken(shop: Shop) -> None:
    chunked = "transfer-encoding: chunked"
    async with served(hooked(shop)) as client:
        for more in (
            ("content-length: 5", "content-length: 6"),
            ("content-length: -1",),
            ("content-length: +5",),
            ("content-length: 5", chunked),
            (chunked, "transfer-encoding: identity"),
        ):
            answer = await raw(client, head(signed_standard(), *more) + BODY, end=True)
            assert answer == b"" or answer.split()[1] in (b"400", b"401", b"501"), more
    assert untouched(shop)


async def test_a_sender_that_goes_in_the_middle_of_its_body_leaves_nothing(shop: Shop) -> None:
    hooks = hooked(shop)
    async with served(hooks) as client:
        request = head(signed_standard(), f"content-length: {len(BODY)}") + BODY[:-1]
        await raw(client, request, end=True)
        # And its place is free again.
        answers = [await client.post("/hook", content=BODY, headers=signed_standard()) for _ in range(2)]
        assert [answer.json()["outcome"] for answer in answers] == ["processed", "duplicate"]


async def test_a_body_that_never_comes_is_given_up(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.2)
    async with served(hooked(shop)) as client:
        started = time.monotonic()
        answer = await raw(client, head(signed_standard(), "content-length: 10") + b"a")
        assert answer.startswith(b"HTTP/1.1 408")
        assert time.monotonic() - started < 15
    assert untouched(shop)


async def test_slow_senders_use_up_their_places_and_not_the_server(shop: Shop) -> None:
    shop.handler(billing := shop.consumer())(effect)
    hooks = Webhooks(shop.app, in_hand_max=2)
    hooks.add("/hook", billing, verify=standard(SECRET))
    async with served(hooks) as client:
        url = client.base_url
        slow = [await asyncio.open_connection(url.host, url.port) for _ in range(2)]
        for _, writer in slow:
            writer.write(head(signed_standard(), "content-length: 10") + b"a")
            await writer.drain()
        statuses = []
        for _ in range(200):
            answer = await client.post("/hook", content=BODY, headers=signed_standard(name="msg-2"))
            statuses.append(answer.status_code)
            if answer.status_code == 429:
                break
        assert statuses[-1] == 429
        for _, writer in slow:
            writer.close()


async def test_an_encoded_body_is_not_unpacked(shop: Shop) -> None:
    async with served(hooked(shop)) as client:
        for encoding in ("gzip", "deflate", "br", "identity, gzip"):
            headers = {**signed_standard(), "content-encoding": encoding}
            assert (await client.post("/hook", content=BODY, headers=headers)).status_code == 415
        plain = {**signed_standard(), "content-encoding": "identity"}
        assert (await client.post("/hook", content=BODY, headers=plain)).status_code == 200


async def test_a_form_is_told_to_send_json(shop: Shop) -> None:
    body = b"payload=%7B%7D"
    headers = {**signed_github(body), "content-type": "application/x-www-form-urlencoded"}
    async with served(hooked(shop, github(PLAIN))) as client:
        answer = await client.post("/hook", content=body, headers=headers)
        assert (answer.status_code, "application/json" in answer.text) == (415, True)
    assert untouched(shop)


async def test_an_unsigned_id_has_the_bodys_hash_joined_to_it(shop: Shop) -> None:
    """Whoever once saw a request could otherwise send its body under the id of the next one, which would
    then be a duplicate, or a conflict."""
    other = BODY.replace(b"100", b"7")
    async with served(hooked(shop, github(PLAIN))) as client:

        async def post(body: bytes, name: str) -> str:
            answer = await client.post("/hook", content=body, headers=signed_github(body, name=name))
            return str(answer.json()["outcome"])

        assert await post(BODY, "guid-1") == "processed"
        assert await post(BODY, "guid-1") == "duplicate"
        assert await post(BODY, "guid-2") == "processed", "the replay under the next one's id"
        assert await post(other, "guid-2") == "processed", "and the next one itself is not suppressed"
    ids = sorted(shop.effects())
    assert [name.partition("~")[0] for name in ids] == ["guid-1", "guid-2", "guid-2"]
    assert all(len(name.partition("~")[2]) == 64 for name in ids)


async def test_github_by_body_can_not_be_replayed_under_another_delivery_id(shop: Shop) -> None:
    async with served(hooked(shop, github(PLAIN, dedup="body"))) as client:
        outcomes = []
        for name, event in (("guid-1", "push"), ("guid-2", "push"), ("guid-3", "release")):
            answer = await client.post("/hook", content=BODY, headers=signed_github(name=name, event=event))
            outcomes.append((answer.status_code, answer.json()["outcome"]))
    # Another type under the same id is a conflict, and kept.
    assert outcomes == [(200, "processed"), (200, "duplicate"), (422, "dead")]
    assert list(shop.effects().values()) == [1]


async def test_an_id_from_a_header_beside_a_signature_is_joined_and_from_the_body_is_not(shop: Shop) -> None:
    words = {"identity": Identity(id=header("x-order"))}
    async with served(hooked(shop, stripe(PLAIN), **words)) as client:
        headers = {**signed_stripe(), "x-order": "7"}
        assert (await client.post("/hook", content=BODY, headers=headers)).status_code == 200
    (name,) = shop.effects()
    assert name.startswith("7~")


async def test_a_verified_message_without_an_id_is_kept_and_told(shop: Shop) -> None:
    body = b'{"type": "payment"}'
    async with served(hooked(shop, stripe(PLAIN))) as client:
        for _ in range(2):
            answer = await client.post("/hook", content=body, headers=signed_stripe(body))
            assert (answer.status_code, answer.json()["reason"]) == (422, "no identity")
    assert shop.count("dead") == 1
    assert shop.effects() == {}


async def test_odd_ids_are_taken_as_they_are_or_kept_among_the_dead(shop: Shop) -> None:
    async with served(hooked(shop)) as client:
        for name, status in (("x" * 512, 200), ("x" * 513, 422), ("with space", 200), ("'; --", 200)):
            answer = await client.post("/hook", content=BODY, headers=signed_standard(name=name))
            assert answer.status_code == status, name
    assert shop.effects() == {"x" * 512: 1, "with space": 1, "'; --": 1}
    assert [row[1] for row in shop.dead()] == ["no identity"]


async def test_verified_bytes_of_any_kind_are_handled_and_never_a_500(shop: Shop) -> None:
    seen: list[Message] = []

    async def looks(call: Call) -> None:
        seen.append(call.message)

    shop.handler(billing := shop.consumer(), payload=bytes)(looks)
    hooks = Webhooks(shop.app)
    hooks.add("/hook", billing, verify=standard(SECRET))
    bodies = [b"", b"\xff\xfe", b"null", b"[" * 100_000, b"not json", b"{" * 2000, b'{"specversion":1}']
    async with served(hooks) as client:
        for n, body in enumerate(bodies):
            answer = await client.post("/hook", content=body, headers=signed_standard(body, name=f"m-{n}"))
            assert answer.status_code == 200, body[:20]
    assert [message.payload for message in seen] == bodies


async def test_the_answer_to_a_wrong_signature_says_nothing_about_it(shop: Shop) -> None:
    async with served(hooked(shop)) as client:
        texts = set()
        for headers in (
            signed_standard(at=1),
            signed_standard(b"other"),
            {**signed_standard(), "webhook-signature": "v1,AAAA"},
            {**signed_standard(), "webhook-id": "a.b"},
            {"x": "y"},
        ):
            answer = await client.post("/hook", content=BODY, headers=headers)
            texts.add((answer.status_code, answer.text))
        assert texts == {(401, '{"error": "not verified"}')}
