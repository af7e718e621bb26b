"""A backfill against real databases: each line once, whatever happens in between."""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from oncebox import Backoff, Consumer, Dead, Message, Retry
from oncebox.core.work import Item
from oncebox.errors import DatabaseUnavailable, OnceboxError
from oncebox.identity import Identity, field
from oncebox.ingest import backfill
from oncebox.ingest.backfill import Ingest, Stopped
from oncebox.ingest.lines import Line
from tests.core.fixtures import inline, on, stored
from tests.core.kit import Call, Shop, effect
from tests.servers import Postgres, Proxy
from tests.webhooks.kit import cloudevent, handled, handled_after_an_outage

BY_FIELD = Identity(id=field("id"), type="paid")
few = on("sqlite", "psycopg-async")


def numbered(*bodies: Any) -> list[Line]:
    encoded = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
    return [Line(number, body) for number, body in enumerate(encoded, 1)]


def payments(count: int) -> list[Line]:
    return numbered(*({"id": f"evt-{n}", "amount": n} for n in range(count)))


class Backfill:
    """A run in a thread of its own, so that handlers may be `async def` on the test's loop."""

    def __init__(self, shop: Shop, consumer: Consumer, identity: Identity = BY_FIELD, **words: Any) -> None:
        self.rejected: list[tuple[int, str]] = []
        loop = asyncio.get_running_loop()

        def take(items: list[Item]) -> None:
            if shop.kind.is_async:
                asyncio.run_coroutine_threadsafe(consumer.take(items), loop).result(60)
            else:
                consumer.take_sync(items)

        def reject(line: Line, reason: str) -> None:
            self.rejected.append((line.number, reason))

        self.ingest = Ingest(consumer, identity, take, file="old.ndjson", rejected=reject, **words)

    async def run(self, lines: Iterable[Line], from_line: int = 1) -> dict[str, int]:
        await asyncio.to_thread(self.ingest.run, lines, from_line)
        return dict(self.ingest.outcomes)


async def test_every_line_takes_effect_once_however_often_it_is_run(shop: Shop) -> None:
    shop.handler(billing := shop.consumer(batch=50))(effect)
    lines = payments(250)
    first = await Backfill(shop, billing).run(lines)
    await handled(shop)
    again = await Backfill(shop, billing).run(lines)
    assert first == {"processed" if shop.mode == "inline" else "stored": 250}
    assert again == {"duplicate": 250}
    assert shop.effects() == {f"evt-{n}": 1 for n in range(250)}


@few
async def test_bad_lines_are_told_by_number_and_do_not_stop_the_rest(shop: Shop) -> None:
    shop.handler(billing := shop.consumer(payload_bytes_max=200))(effect)
    bodies = [
        {"id": "a"},
        b"{not json",
        b"",
        {"no": "id"},
        {"id": 7},
        {"id": 1.5},
        {"id": "x" * 300},
        b"[" * 5000,
        b'{"id": "\xff"}',
        b"null",
        {"id": "b", "long": "y" * 300},
        {"id": "c"},
        {"id": "a"},
    ]
    run = Backfill(shop, billing)
    await run.run(numbered(*bodies))
    await handled(shop)
    assert [number for number, _ in run.rejected] == [2, 4, 6, 7, 8, 9, 10, 11]
    reasons = dict(run.rejected)
    assert "not JSON" in reasons[2]
    assert "the field 'id' gave none" in reasons[4]
    assert reasons[8] == "nested too deep"
    assert "yyy" not in str(reasons)
    assert (run.ingest.lines, run.ingest.rejects, run.ingest.last) == (12, 8, 13)
    assert shop.effects() == {"a": 1, "7": 1, "c": 1}
    assert shop.count("dead") == 0, "a rejected line is in its file, not among the dead"


@on("sqlite")
async def test_a_line_without_a_type_is_rejected_where_nobody_takes_everything(shop: Shop) -> None:
    shop.handler(billing := shop.consumer(), "paid")(effect)
    run = Backfill(shop, billing, Identity(id=field("id"), type=field("kind")))
    lines = numbered({"id": "a", "kind": "paid"}, {"id": "b"}, {"id": "c", "kind": "newer"})
    outcomes = await run.run(lines)
    await handled(shop)
    assert shop.effects() == {"a": 1}
    if shop.mode == "stored":
        assert (outcomes, [number for number, _ in run.rejected]) == ({"stored": 2}, [2])
        assert "--type-field" in run.rejected[0][1]
        assert shop.count("queue") == 1, "a newer deployment may handle it"
    else:
        assert (outcomes, [number for number, _ in run.rejected]) == ({"processed": 1}, [2, 3])


@few
async def test_cloudevents_meet_what_came_by_the_broker(shop: Shop) -> None:
    shop.handler(billing := shop.consumer())(effect)
    live = Message(id="ce-1", source="/shop", type="payment", payload=b'{"amount":5}')
    await shop.deliver(billing, live)
    await handled(shop)
    events = [json.dumps(cloudevent(name), separators=(",", ":")).encode() for name in ("ce-1", "ce-2")]
    outcomes = await Backfill(shop, billing, Identity()).run(
        numbered(*events, {"specversion": "1.0", "id": "no source"})
    )
    await handled(shop)
    assert outcomes == {"duplicate": 1, "processed" if shop.mode == "inline" else "stored": 1}
    assert shop.effects() == {"ce-1": 1, "ce-2": 1}


@few
async def test_a_line_that_says_other_than_its_id_is_a_conflict_and_kept(shop: Shop) -> None:
    shop.handler(billing := shop.consumer())(effect)
    outcomes = await Backfill(shop, billing).run(numbered({"id": "a", "n": 1}, {"id": "a", "n": 2}))
    await handled(shop)
    assert outcomes["dead"] == 1
    assert [row[:2] for row in shop.dead()] == [("a", "conflict")]
    assert shop.effects() == {"a": 1}


@few
async def test_the_same_line_many_times_is_one_effect(shop: Shop) -> None:
    shop.handler(billing := shop.consumer())(effect)
    outcomes = await Backfill(shop, billing).run(numbered(*[{"id": "a"}] * 60))
    await handled(shop)
    assert sum(outcomes.values()) == 60
    assert shop.effects() == {"a": 1}


@few
@inline
async def test_a_handler_that_fails_is_tried_again_within_the_run(shop: Shop) -> None:
    billing = shop.consumer(retry=Backoff(attempts=3, base_seconds=0.01))
    tries: dict[str, int] = {}

    @shop.handler(billing)
    async def sometimes(call: Call) -> None:
        name = call.message.id
        tries[name] = tries.get(name, 0) + 1
        await effect(call)
        if name == "evt-2":
            raise Dead("never")
        if name == "evt-1" or (name == "evt-0" and tries[name] < 3):
            raise ValueError("not yet")

    run = Backfill(shop, billing)
    outcomes = await run.run(payments(5))
    assert outcomes == {"processed": 3, "dead": 2}
    assert tries == {"evt-0": 3, "evt-1": 3, "evt-2": 1, "evt-3": 1, "evt-4": 1}
    assert shop.effects() == {"evt-0": 1, "evt-3": 1, "evt-4": 1}
    assert (run.ingest.last, run.ingest.pending) == (5, 0)


@few
@inline
async def test_stopped_in_the_middle_it_says_up_to_where_all_is_on_record(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "INLINE_BATCH", 10)
    billing = shop.consumer(retry=Backoff(base_seconds=100))
    run: Backfill

    @shop.handler(billing)
    async def stops(call: Call) -> None:
        await effect(call)
        if call.message.id == "evt-25":
            run.ingest.stopping = True
        if call.message.id == "evt-17" and shop.count("attempt") == 0:
            raise ValueError("not now")

    run = Backfill(shop, billing)
    await run.run(payments(100))
    assert run.ingest.outcomes == {"processed": 29}
    assert (run.ingest.last, run.ingest.pending) == (17, 1), "the 18th line waits for its next attempt"
    rest = Backfill(shop, billing)
    outcomes = await rest.run(payments(100), from_line=run.ingest.last + 1)
    assert outcomes == {"processed": 71, "duplicate": 12}
    assert shop.effects() == {f"evt-{n}": 1 for n in range(100)}


@on("sqlite")
@inline
async def test_a_signal_ends_the_wait_for_another_attempt(shop: Shop) -> None:
    billing = shop.consumer(retry=Backoff(base_seconds=1000, factor=1))

    @shop.handler(billing)
    async def fails(call: Call) -> None:
        raise Retry("not yet", after=1000)

    def sleep(seconds: float) -> None:
        assert run.ingest.waiting
        assert seconds > 900
        run.ingest.stopping = True
        raise Stopped  # as the signal's handler does

    run = Backfill(shop, billing, sleep=sleep)
    assert await run.run(payments(2)) == {}
    assert (run.ingest.last, run.ingest.pending, run.ingest.waiting) == (0, 2, False)


@on("psycopg", "asyncpg")
async def test_a_database_that_goes_away_in_the_middle_is_waited_for(
    kind: str,
    mode: str,
    shop_url: str,
    postgres: Postgres,
    proxy_to: Callable[[int], Proxy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backfill, "STORE_MAX", 50)
    monkeypatch.setattr(backfill, "INLINE_BATCH", 50)
    proxy = proxy_to(postgres.port)
    shop = Shop(kind, proxy.through(shop_url), mode, seen=shop_url)
    try:
        shop.handler(billing := shop.consumer(batch=10))(effect)
        pauses = 0

        def lines() -> Iterable[Line]:
            for line in payments(200):
                if line.number == 130:
                    proxy.cut(refuse=True)
                yield line

        def sleep(seconds: float) -> None:
            nonlocal pauses
            pauses += 1
            if pauses == 3:
                proxy.pass_through()

        outcomes = await Backfill(shop, billing, sleep=sleep).run(lines())
        assert pauses >= 3
        assert sum(outcomes.values()) == 200
        await handled_after_an_outage(shop)
        assert shop.effects() == {f"evt-{n}": 1 for n in range(200)}
    finally:
        await shop.close()


@on("psycopg")
@stored
async def test_a_database_that_stays_away_ends_the_run_and_says_how_far_it_came(
    kind: str,
    mode: str,
    shop_url: str,
    postgres: Postgres,
    proxy_to: Callable[[int], Proxy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backfill, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(backfill, "STORE_MAX", 50)
    proxy = proxy_to(postgres.port)
    shop = Shop(kind, proxy.through(shop_url), mode, seen=shop_url)
    try:
        shop.handler(billing := shop.consumer())(effect)

        def lines() -> Iterable[Line]:
            for line in payments(130):
                if line.number == 70:
                    proxy.cut(refuse=True)
                yield line

        run = Backfill(shop, billing)
        with pytest.raises(DatabaseUnavailable):
            await run.run(lines())
        assert (run.ingest.last, shop.count("queue")) == (50, 50)
    finally:
        await shop.close()


@on("sqlite")
@stored
async def test_damage_ends_the_reading_after_what_was_read_is_taken(shop: Shop) -> None:
    shop.handler(billing := shop.consumer())(effect)

    def lines() -> Iterable[Line]:
        yield from payments(5)
        raise OnceboxError("the file is damaged")

    run = Backfill(shop, billing)
    with pytest.raises(OnceboxError, match="damaged"):
        await run.run(lines())
    assert (run.ingest.last, shop.count("queue")) == (5, 5)


@on("sqlite")
@stored
async def test_lines_carry_where_they_came_from_and_their_key(shop: Shop) -> None:
    shop.handler(billing := shop.consumer())(effect)
    await Backfill(shop, billing, key=field("account")).run(numbered({"id": "a", "account": 7}))
    ((key, provenance),) = shop.rows(f"SELECT key, provenance FROM {shop.table('queue')}")
    assert (key, json.loads(provenance)) == ("7", {"file": "old.ndjson", "line": 1})
