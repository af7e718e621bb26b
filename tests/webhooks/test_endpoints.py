"""Signed requests to a real server: one effect, however often they come, and 2xx only after the commit."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from oncebox import App, Backoff, Dead, Discard, Retry
from oncebox.errors import ConfigError
from oncebox.identity import Identity, field, header
from oncebox.webhooks import Webhooks, github, standard, stripe, token
from tests.core.fixtures import inline, on, stored
from tests.core.kit import Call, Shop, effect
from tests.servers import Postgres, Proxy
from tests.waiting import eventually_async
from tests.webhooks.kit import (
    BODY,
    OLD_SECRET,
    PLAIN,
    SECRET,
    Headers,
    bearing,
    handled,
    handled_after_an_outage,
    served,
    signed_github,
    signed_standard,
    signed_stripe,
)

few = on("sqlite", "psycopg-async")
SENDERS: dict[str, tuple[Any, Callable[..., Headers]]] = {
    "standard": (standard(SECRET), signed_standard),
    "stripe": (stripe(PLAIN), signed_stripe),
    "github": (github(PLAIN), signed_github),
    "token": (token(PLAIN), lambda body=BODY: bearing(content_type="application/json")),
}


def hooked(shop: Shop, sender: str = "standard", *, body: Any = effect, **words: Any) -> Webhooks:
    """A shop with an endpoint at /hook for its consumer `billing`."""
    billing = shop.consumer("billing", retry=Backoff(attempts=3, base_seconds=0))
    shop.handler(billing)(body)
    hooks = Webhooks(shop.app)
    words = {"identity": Identity(id=field("id"), type="payment"), **words} if sender == "token" else words
    hooks.add("/hook", billing, verify=SENDERS[sender][0], **words)
    return hooks


async def test_a_webhook_five_times_is_five_times_2xx_and_one_effect(shop: Shop) -> None:
    await five_times(shop, "standard")


@pytest.mark.parametrize("sender", ["stripe", "github", "token"])
@on("sqlite")
async def test_every_sender_is_taken_once(shop: Shop, sender: str) -> None:
    await five_times(shop, sender)


async def five_times(shop: Shop, sender: str) -> None:
    async with served(hooked(shop, sender)) as client:
        answers = [await client.post("/hook", content=BODY, headers=SENDERS[sender][1]()) for _ in range(5)]
        await handled(shop)
        last = await client.post("/hook", content=BODY, headers=SENDERS[sender][1]())
    first, others = ("processed", "duplicate") if shop.mode == "inline" else ("stored", "waiting")
    assert [answer.json()["outcome"] for answer in answers] == [first] + [others] * 4
    assert {answer.status_code for answer in answers} == {200 if shop.mode == "inline" else 202}
    assert (last.status_code, last.json()["outcome"]) == (200, "duplicate")
    assert list(shop.effects().values()) == [1]


@few
async def test_the_same_webhook_many_times_at_once_is_one_effect(shop: Shop) -> None:
    async with served(hooked(shop)) as client:
        headers = signed_standard()
        sent = [client.post("/hook", content=BODY, headers=headers) for _ in range(20)]
        answers = await asyncio.gather(*sent)
        await handled(shop)
    assert all(answer.is_success for answer in answers)
    assert shop.effects() == {"msg-1": 1}


@pytest.mark.parametrize("sender", list(SENDERS))
@on("sqlite")
async def test_a_flipped_bit_is_401_and_leaves_no_row(shop: Shop, sender: str) -> None:
    headers = SENDERS[sender][1]()
    body = BODY
    if sender == "token":
        headers["authorization"] = headers["authorization"][:-1] + "T"
    else:
        body = BODY.replace(b"100", b"900")
    async with served(hooked(shop, sender)) as client:
        answer = await client.post("/hook", content=body, headers=headers)
        assert (answer.status_code, answer.json()) == (401, {"error": "not verified"})
        assert "www-authenticate" in answer.headers
    for table in ("ledger", "queue", "dead", "attempt"):
        assert shop.count(table) == 0


@few
@inline
async def test_a_replay_after_five_minutes_is_401_even_if_it_was_never_seen(shop: Shop) -> None:
    async with served(hooked(shop)) as client:
        for seconds in (-310, 310):
            headers = signed_standard(at=time.time() + seconds)
            assert (await client.post("/hook", content=BODY, headers=headers)).status_code == 401
    assert shop.count("ledger") == 0


@on("sqlite")
@inline
async def test_secrets_are_rotated_without_a_lost_webhook(shop: Shop) -> None:
    hooks = Webhooks(shop.app)
    shop.handler(billing := shop.consumer())(effect)
    hooks.add("/hook", billing, verify=standard(SECRET, OLD_SECRET))
    async with served(hooks) as client:
        for name, secret in (("a", OLD_SECRET), ("b", SECRET)):
            headers = signed_standard(name=name, secret=secret)
            assert (await client.post("/hook", content=BODY, headers=headers)).status_code == 200
    assert shop.effects() == {"a": 1, "b": 1}


@on("sqlite", "psycopg-async")
@inline
async def test_outcomes_have_their_statuses(shop: Shop) -> None:
    async def decides(call: Call) -> None:
        await effect(call)
        match call.message.id:
            case "dead":
                raise Dead("no such account")
            case "discard":
                raise Discard("of no interest")
            case "retry":
                raise Retry("not yet", after=7)
            case "fails":
                raise ValueError("a bug")

    async with served(hooked(shop, body=decides)) as client:

        async def post(name: str, body: bytes = BODY) -> tuple[int, dict[str, Any], str | None]:
            answer = await client.post("/hook", content=body, headers=signed_standard(body, name=name))
            return answer.status_code, answer.json(), answer.headers.get("retry-after")

        assert await post("fine") == (200, {"id": "fine", "outcome": "processed"}, None)
        assert await post("dead") == (200, {"id": "dead", "outcome": "dead", "reason": "terminal"}, None)
        assert (await post("discard"))[:2] == (200, {"id": "discard", "outcome": "discarded"})
        assert await post("retry") == (503, {"id": "retry", "outcome": "retry"}, "7")
        assert [(await post("fails"))[0] for _ in range(3)] == [503, 503, 200]
        assert (await post("fails"))[1] == {"id": "fails", "outcome": "dead", "reason": "exhausted"}
        other = BODY.replace(b"100", b"999")
        told = {"id": "fine", "outcome": "dead", "reason": "conflict"}
        assert await post("fine", other) == (422, told, None)
        assert await post("fine", other) == (422, told, None)
    assert shop.effects() == {"fine": 1}
    assert [row[:2] for row in shop.dead()] == [
        ("dead", "terminal"),
        ("fails", "exhausted"),
        ("fine", "conflict"),
    ]


@on("psycopg", "asyncpg")
@inline
async def test_a_message_that_another_has_in_hand_is_409_with_retry_after(shop: Shop) -> None:
    gate = shop.gate()

    async def waits(call: Call) -> None:
        await effect(call)
        await gate.wait()

    billing = shop.consumer("billing", lock_timeout_seconds=0.2)
    shop.handler(billing)(waits)
    hooks = Webhooks(shop.app)
    hooks.add("/hook", billing, verify=standard(SECRET))
    async with served(hooks) as client:
        first = asyncio.create_task(client.post("/hook", content=BODY, headers=signed_standard()))
        await gate.reached_by_somebody()
        answer = await client.post("/hook", content=BODY, headers=signed_standard())
        assert (answer.status_code, answer.json()["outcome"]) == (409, "in_flight")
        assert answer.headers["retry-after"] == "1"
        gate.open()
        assert (await first).json()["outcome"] == "processed"
    assert shop.effects() == {"msg-1": 1}


@few
@inline
async def test_more_than_may_be_in_hand_are_429_with_retry_after(shop: Shop) -> None:
    gate = shop.gate()

    async def waits(call: Call) -> None:
        await effect(call)
        await gate.wait()

    shop.handler(billing := shop.consumer())(waits)
    hooks = Webhooks(shop.app, in_hand_max=1)
    hooks.add("/hook", billing, verify=standard(SECRET))
    async with served(hooks) as client:
        first = asyncio.create_task(client.post("/hook", content=BODY, headers=signed_standard()))
        await gate.reached_by_somebody()
        answer = await client.post("/hook", content=BODY, headers=signed_standard(name="msg-2"))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        gate.open()
        assert (await first).status_code == 200
        again = await client.post("/hook", content=BODY, headers=signed_standard(name="msg-2"))
        assert again.status_code == 200
    assert shop.effects() == {"msg-1": 1, "msg-2": 1}


@on("psycopg", "asyncpg")
async def test_without_a_database_it_is_503_with_retry_after_and_then_it_works(
    kind: str, mode: str, shop_url: str, postgres: Postgres, proxy_to: Callable[[int], Proxy]
) -> None:
    proxy = proxy_to(postgres.port)
    shop = Shop(kind, proxy.through(shop_url), mode, seen=shop_url)
    try:
        async with served(hooked(shop)) as client:

            async def post(name: str) -> httpx.Response:
                return await client.post("/hook", content=BODY, headers=signed_standard(name=name))

            assert (await post("before")).is_success
            proxy.cut(refuse=True)
            for _ in range(3):
                away = await post("during")
                assert (away.status_code, away.headers["retry-after"]) == (503, "5")
                assert away.json() == {"error": "it could not be taken; try again"}
            proxy.pass_through()

            async def taken() -> bool:
                return (await post("during")).is_success

            predicate: Callable[[], bool | Awaitable[bool]] = taken
            await eventually_async(predicate, 30)
            await handled_after_an_outage(shop)
        assert shop.effects() == {"before": 1, "during": 1}
    finally:
        await shop.close()


@few
async def test_what_is_kept_of_a_request_has_no_secret_in_it(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[tuple[str, bytes], ...]] = []

    async def looks(call: Call) -> None:
        seen.append(call.message.headers)
        await effect(call)

    async with served(hooked(shop, "token", body=looks)) as client:
        headers = bearing(cookie="session=canary", x_trace="abc", content_type="application/json")
        assert (await client.post("/hook", content=BODY, headers=headers)).is_success
        wrong = bearing("canary")
        assert (await client.post("/hook", content=b"canary", headers=wrong)).status_code == 401
        await handled(shop)
    assert seen == [
        (("user-agent", seen[0][0][1]), ("x-trace", b"abc"), ("content-type", b"application/json"))
    ]
    assert "canary" not in caplog.text
    assert PLAIN not in caplog.text


@on("sqlite")
@inline
async def test_only_posts_to_known_paths_are_taken(shop: Shop) -> None:
    async with served(hooked(shop)) as client:
        for path in ("/", "/hook/", "/hook/x", "/HOOK", "//hook", "/other"):
            assert (await client.post(path, content=BODY, headers=signed_standard())).status_code == 404
        got = await client.get("/hook")
        assert (got.status_code, got.headers["allow"]) == (405, "POST")
    assert shop.count("ledger") == 0


@on("sqlite")
@inline
async def test_identity_source_and_type_are_named_at_the_endpoint(shop: Shop) -> None:
    seen: list[tuple[str, str, str]] = []

    async def looks(call: Call) -> None:
        seen.append((call.message.source, call.message.id, call.message.type))

    shop.handler(billing := shop.consumer())(looks)
    hooks = Webhooks(shop.app)
    hooks.add("/a", billing, verify=stripe(PLAIN), source="stripe-eu")
    hooks.add("/b", billing, verify=stripe(PLAIN), identity=Identity(id=field("order")), type=field("kind"))
    body = json.dumps({"id": "evt-1", "type": "paid", "order": 7, "kind": "k"}).encode()
    async with served(hooks) as client:
        for path in ("/a", "/b"):
            answer = await client.post(path, content=body, headers=signed_stripe(body))
            assert answer.status_code == 200
    assert seen == [("stripe-eu", "evt-1", "paid"), ("", "7", "k")]


@on("sqlite")
@inline
async def test_mistakes_are_told_at_start(shop: Shop) -> None:
    billing = shop.consumer()
    hooks = Webhooks(shop.app)
    hooks.add("/hook", billing, verify=token(PLAIN))
    for path, words, told in (
        ("/hook", {}, "has an endpoint already"),
        ("hook", {}, "starts with a slash"),
        ("/a", {"verify": "secret"}, "verify="),
        ("/a", {"body_bytes_max": 0}, "at least 1"),
        ("/a", {"identity": Identity(type="a"), "type": "b"}, "named twice"),
        ("/a", {"identity": Identity(source=header("x")), "source": "b"}, "named twice"),
    ):
        with pytest.raises(ConfigError, match=told):
            hooks.add(path, billing, **{"verify": token(PLAIN), **words})  # type: ignore[arg-type]
    ordered = shop.app.consumer("ordered", order_by="key", key=field("account"))
    with pytest.raises(ConfigError, match="order_by needs mode"):
        hooks.add("/c", ordered, verify=token(PLAIN))
    with pytest.raises(ConfigError, match="served at '/' already"):
        Webhooks(shop.app)
    with pytest.raises(ConfigError, match="another app"):
        hooks.add("/b", App("sqlite:///other.db").consumer("billing"), verify=token(PLAIN))


def test_an_app_without_a_database_has_no_webhooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEBOX_DATABASE_URL", raising=False)
    app = App()
    with pytest.raises(ConfigError, match="names no database"):
        Webhooks(app).add("/hook", app.consumer("billing"), verify=token(PLAIN))


@few
@stored
async def test_stored_answers_before_any_handler_runs(shop: Shop) -> None:
    async with served(hooked(shop)) as client:
        answer = await client.post("/hook", content=BODY, headers=signed_standard())
        assert (answer.status_code, answer.json()) == (202, {"id": "msg-1", "outcome": "stored"})
        assert (shop.count("ledger"), shop.count("queue"), shop.effects()) == (1, 1, {})
        await handled(shop)
    assert shop.effects() == {"msg-1": 1}
