"""External effects: started before the call, settled after it, unknown in between and never guessed."""

import asyncio
import threading
import time
from typing import Any

import pytest

from oncebox import Discard, Status
from oncebox.core.effects import TWICE, Call
from oncebox.errors import UnknownEffect
from tests.core.fixtures import on, stored
from tests.core.kit import Shop
from tests.outgoing.calls import Mailer, Provider
from tests.waiting import eventually, eventually_async

pytestmark = stored


def raising(error: BaseException) -> Any:
    def does(*_: Any) -> Any:
        raise error

    return does


async def test_started_is_durable_before_the_call_and_the_result_after(shop: Shop) -> None:
    provider = Provider()
    mailer = Mailer(shop, provider)
    seen: list[Any] = []

    def look(call: Any) -> Any:
        seen.append((mailer.effect(), call.attempt, call.consumer))
        return {"receipt": 7}

    provider.does = look
    await mailer.receive()
    (item,) = await mailer.work()
    assert item.outcome is not None
    assert (item.outcome.status, item.outcome.result) == (Status.PROCESSED, {"receipt": 7})
    assert seen == [(("started", 1), 1, "mailer")]
    assert (mailer.effect(), mailer.is_queued(), shop.count("result")) == (("done", 1), False, 1)
    assert await mailer.work() == []
    await mailer.receive()
    assert await mailer.work() == []
    assert provider.times() == 1


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), UnknownEffect("?")])
async def test_a_call_that_may_have_happened_is_parked(shop: Shop, error: Exception) -> None:
    provider = Provider()
    provider.does = raising(error)
    mailer = Mailer(shop, provider)
    await mailer.receive()
    (item,) = await mailer.work()
    assert item.outcome is not None
    assert (item.outcome.status, mailer.effect()) == (Status.RETRY, ("started", 1))
    (item,) = await mailer.work()
    assert item.outcome is not None
    assert (item.outcome.status, item.outcome.reason) == (Status.DEAD, "unknown effect")
    assert (mailer.effect(), provider.times(), mailer.is_queued()) == (("parked", 1), 1, False)


async def test_an_ordinary_error_is_charged_and_tried_again_with_the_same_key(shop: Shop) -> None:
    provider = Provider()
    provider.does = raising(ValueError("402"))
    mailer = Mailer(shop, provider)
    await mailer.receive()
    await mailer.work()
    assert mailer.effect() == ("failed", 1)
    provider.does = lambda call: None
    await mailer.work()
    assert (mailer.effect(), len(shop.attempts("evt-1"))) == (("done", 2), 1)
    assert len(provider.calls) == 2
    assert len(set(provider.calls)) == 1


async def test_out_of_attempts_it_is_dead(shop: Shop) -> None:
    provider = Provider()
    provider.does = raising(ValueError("402"))
    mailer = Mailer(shop, provider)
    await mailer.receive()
    for _ in range(4):
        await mailer.work()
    assert [row[1] for row in shop.dead()] == ["exhausted"]
    assert await mailer.work() == []


async def test_retry_calls_again_with_the_same_key_while_it_is_honoured(shop: Shop) -> None:
    provider = Provider()
    provider.does = raising(TimeoutError())
    mailer = Mailer(shop, provider, on_unknown="retry", key_ttl=100)
    await mailer.receive()
    await mailer.work()
    provider.does = lambda call: "ok"
    mailer.age(90)
    await mailer.work()
    assert (mailer.effect(), len(provider.calls), len(set(provider.calls))) == (("done", 2), 2, 1)


async def test_retry_parks_what_is_older_than_the_key(shop: Shop) -> None:
    provider = Provider()
    provider.does = raising(TimeoutError())
    mailer = Mailer(shop, provider, on_unknown="retry", key_ttl=100)
    await mailer.receive()
    await mailer.work()
    mailer.age(110)
    (item,) = await mailer.work()
    assert item.outcome is not None
    assert "past key_ttl of 100 s" in str(item.outcome.error)
    assert (mailer.effect(), provider.times()) == (("parked", 1), 1)


@pytest.mark.parametrize(
    ("answer", "effect", "calls", "result"),
    [
        ({"found": 1}, ("done", 1), 1, {"found": 1}),
        (True, ("done", 1), 1, None),
        (False, ("done", 2), 2, "again"),
        (None, ("done", 2), 2, "again"),
    ],
)
async def test_reconcile_asks_whether_it_happened(
    shop: Shop, answer: Any, effect: Any, calls: int, result: Any
) -> None:
    provider = Provider()
    provider.does = raising(TimeoutError())
    asked: list[str] = []

    async def waiting(payload: Any, call: Any) -> Any:
        asked.append(call.idempotency_key)
        return answer

    def blocking(payload: Any, call: Any) -> Any:
        asked.append(call.idempotency_key)
        return answer

    hook = waiting if shop.kind.is_async else blocking
    mailer = Mailer(shop, provider, on_unknown="reconcile", reconcile=hook)
    await mailer.receive()
    await mailer.work()
    provider.does = lambda call: "again"
    (item,) = await mailer.work()
    assert item.outcome is not None
    assert (item.outcome.status, item.outcome.result) == (Status.PROCESSED, result)
    assert (mailer.effect(), provider.times(), asked) == (effect, calls, [provider.calls[0][1]])


async def test_a_hook_that_fails_is_charged_and_leads_to_no_call(shop: Shop) -> None:
    provider = Provider()
    provider.does = raising(TimeoutError())

    def hook(payload: Any, call: Any) -> Any:
        raise ValueError("provider's search is down")

    mailer = Mailer(shop, provider, on_unknown="reconcile", reconcile=hook)
    await mailer.receive()
    for _ in range(4):
        await mailer.work()
    assert (provider.times(), mailer.effect()) == (1, ("parked", 1)), "no try is left: a person decides"
    assert [row[1] for row in shop.dead()] == ["exhausted"]


async def test_a_hook_that_discards_settles_its_effect_too(shop: Shop) -> None:
    provider = Provider()
    provider.does = raising(TimeoutError())
    mailer = Mailer(shop, provider, on_unknown="reconcile", reconcile=raising(Discard("order was cancelled")))
    await mailer.receive()
    await mailer.work()
    (item,) = await mailer.work()
    assert item.outcome is not None
    assert (item.outcome.status, mailer.is_queued()) == (Status.DISCARDED, False)
    assert (provider.times(), mailer.effect()) == (1, ("discarded", 1))
    assert shop.rows(f"SELECT note FROM {shop.table('effect')}") == [("order was cancelled",)]


async def test_a_hook_that_hangs_is_left_behind_and_charged(shop: Shop) -> None:
    hanging = threading.Event()
    await asked_in_vain(shop, lambda payload, call: hanging.wait(60))
    hanging.set()


@on("asyncpg")
async def test_an_awaiting_hook_that_hangs_is_cancelled_and_charged(shop: Shop) -> None:
    async def hook(payload: Any, call: Any) -> Any:
        await asyncio.Event().wait()

    await asked_in_vain(shop, hook)


async def asked_in_vain(shop: Shop, hook: Any) -> None:
    provider = Provider()
    provider.does = raising(TimeoutError())
    mailer = Mailer(shop, provider, on_unknown="reconcile", reconcile=hook, timeout=0.1)
    await mailer.receive()
    await mailer.work()
    (item,) = await mailer.work()
    assert item.outcome is not None
    assert item.outcome.status is Status.RETRY
    assert "the reconcile hook of id 'evt-1' ran longer than 0.1 s (policy word: timeout)" in str(
        item.outcome.error
    )
    assert (provider.times(), mailer.effect(), mailer.is_queued()) == (1, ("started", 1), True)


@on("psycopg")
async def test_a_call_that_hangs_in_its_thread_gives_its_message_up(shop: Shop) -> None:
    hanging = threading.Event()
    provider = Provider()
    provider.does = lambda call: hanging.wait(60)
    mailer = Mailer(shop, provider, timeout=0.2, lease_seconds=0.6, concurrency=2)
    await mailer.receive()
    async with shop.app.running():
        await eventually_async(lambda: mailer.effect() == ("parked", 1), 20)
        assert [row[1] for row in shop.dead()] == ["unknown effect"]
        hanging.set()
        await eventually_async(lambda: mailer.effect() == ("done", 1), 20)
    assert (provider.times(), shop.count("dead")) == (1, 0), "it came back after all: what is known is kept"


@on("sqlite", "psycopg")
async def test_a_blocking_call_that_comes_back_late_is_known(shop: Shop) -> None:
    provider = Provider()

    def slow(call: Any) -> Any:
        started = time.monotonic()
        eventually(lambda: time.monotonic() - started > 0.1)
        return "late"

    provider.does = slow
    mailer = Mailer(shop, provider, timeout=0.05)
    await mailer.receive()
    (item,) = await mailer.work()
    assert item.outcome is not None
    assert (item.outcome.status, item.outcome.result) == (Status.PROCESSED, "late")
    assert mailer.effect() == ("done", 1)


@on("asyncpg")
async def test_a_timeout_of_the_consumer_is_unknown(shop: Shop) -> None:
    mailer = Mailer(shop, Provider(), timeout=0.05)
    other = shop.consumer("slow", mode="stored", timeout=0.05)

    async def slow(call: Call) -> None:
        await asyncio.Event().wait()

    other.effect("paid")(slow)
    mailer.consumer = other
    await mailer.receive()
    (item,) = await mailer.work()
    assert item.outcome is not None
    assert type(item.outcome.error).__name__ == "HandlerTimeout"
    assert mailer.effect() == ("started", 1)


async def test_a_result_that_cannot_be_kept_is_no_reason_to_call_again(shop: Shop) -> None:
    provider = Provider()
    provider.does = lambda call: object()
    mailer = Mailer(shop, provider, on_unknown="retry")
    await mailer.receive()
    await mailer.work()
    assert (mailer.effect(), provider.times(), shop.count("result")) == (("done", 1), 1, 0)
    ((note,),) = shop.rows(f"SELECT note FROM {shop.table('effect')}")
    assert "its result could not be kept" in note


@pytest.mark.parametrize("policy", ["park", "retry"])
async def test_a_late_result_settles_its_row(shop: Shop, policy: str) -> None:
    """The lease lapses during the call, another worker decides, then the first one comes back."""
    provider = Provider()
    mailer = Mailer(shop, provider, on_unknown=policy)
    await mailer.receive()
    outcomes: list[Any] = []

    def through(op: Any) -> Any:
        step = next(op)
        while True:
            reply = yield step
            if type(step).__name__ == "Handle":
                outcomes.append("called")
                mailer.lapse()
                mailer.shop.rows(f"UPDATE {shop.table('queue')} SET token = 'other/1'")
            try:
                step = op.send(reply)
            except StopIteration as stop:
                return stop.value

    (item,) = await mailer.work(through=through)
    assert item.outcome is not None
    assert (item.outcome.status, item.outcome.reason) == (Status.PROCESSED, "late")
    assert (mailer.effect(), mailer.is_queued(), outcomes) == (("done", 1), False, ["called"])
    assert await mailer.work(slot=2) == []


async def test_a_late_result_digs_up_what_was_parked_and_a_second_one_is_told(shop: Shop) -> None:
    provider = Provider()
    mailer = Mailer(shop, provider)
    await mailer.receive()

    def through(op: Any) -> Any:
        step = next(op)
        while True:
            reply = yield step
            if type(step).__name__ == "Handle":
                provider.does = lambda call: None
                mailer.lapse()
                table, dead = shop.table("queue"), shop.table("dead")
                shop.rows(
                    f"INSERT INTO {dead} (consumer, source, message_id, fingerprint, type, payload, headers, "
                    "content_type, provenance, received, reason, seq, died) SELECT consumer, source, message_id, "
                    "fingerprint, type, payload, headers, content_type, provenance, received, 'unknown effect', "
                    f"seq, received FROM {table}"
                )
                shop.rows(f"DELETE FROM {table}")
                shop.rows(f"UPDATE {shop.table('effect')} SET state = '{state}'")
            try:
                step = op.send(reply)
            except StopIteration as stop:
                return stop.value

    state = "parked"
    (item,) = await mailer.work(through=through)
    assert item.outcome is not None
    assert (item.outcome.reason, mailer.effect(), shop.count("dead")) == ("late", ("done", 1), 0)
    await mailer.receive("evt-2")
    state = "done"
    (item,) = await mailer.work(through=through)
    assert item.outcome is not None
    assert item.outcome.reason == TWICE
