"""Ids that carry their time: what may have been forgotten is kept for a person, and nothing else is."""

import time
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from oncebox import Status
from oncebox.core.audit import Act
from oncebox.core.dead import Choice, decide
from oncebox.identity.times import event_made_at, id_made_at
from oncebox.runtime.sweeper import Sweeper
from tests.core.fixtures import inline, on, stored
from tests.core.kit import Call, Shop, effect, event
from tests.operate.test_sweep import DAY, WINDOW, age, marked, walk
from tests.order.lines import BY_KEY, case, note

_CHARS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def uuid7(days: float, tail: int = 1) -> str:
    """One that was made so many days ago."""
    made = int((time.time() - days * DAY) * 1000)
    return str(uuid.UUID(int=made << 80 | 7 << 76 | 2 << 62 | tail))


def ulid(days: float) -> str:
    made, text = int((time.time() - days * DAY) * 1000), ""
    for _ in range(10):
        made, rest = divmod(made, 32)
        text = _CHARS[rest] + text
    return text + "A" * 16


@pytest.fixture(autouse=True)
def _clean(request: pytest.FixtureRequest) -> None:
    if "shop" in request.fixturenames:
        shop: Shop = request.getfixturevalue("shop")
        shop.rows(f"DELETE FROM {shop.table('sweep')}")
        shop.rows(f"INSERT INTO {shop.table('sweep')} (name) VALUES ('ledger')")


async def forget(shop: Shop, consumer: Any, days: float = 20, where: str = "1=1") -> None:
    """Something that was received so many days ago is forgotten."""
    await shop.settle(consumer, event("forgotten"))
    age(shop, days, where=where)
    marked(shop, consumer, days - 1)
    assert await walk(shop, consumer) > 0


async def test_what_may_have_been_forgotten_is_dead_and_a_person_can_run_it(shop: Shop) -> None:
    billing = shop.consumer(retention=WINDOW)
    shop.handler(billing)(effect)
    known, late = uuid7(25, 1), uuid7(25, 2)
    await shop.settle(billing, event(known))
    await forget(shop, billing)
    assert (await shop.deliver(billing, event(known))).status is Status.DEAD, "it took effect before"
    for each in (late, ulid(30)):
        outcome = await shop.deliver(billing, event(each))
        assert (outcome.status, outcome.reason) == (Status.DEAD, "outside window")
    assert (await shop.deliver(billing, event(late))).status is Status.DEAD, "a duplicate of what is dead"
    assert shop.effects() == {"forgotten": 1, known: 1}
    act = Act(verb="dead redrive", who="me", reason="it is new")
    queries = shop.app.database.queries
    await shop.perform(billing, lambda work: decide(queries, "redrive", Choice(ids=(late,)), act))
    await shop.work_off(billing)
    assert shop.effects()[late] == 1


async def test_what_can_not_have_been_forgotten_is_run_however_old_it_is(shop: Shop) -> None:
    billing = shop.consumer(retention=WINDOW)
    shop.handler(billing)(effect)
    # Nothing is forgotten yet: a ledger that is new knows what it has seen.
    assert (await shop.settle(billing, event(uuid7(400)))).status is Status.PROCESSED
    await forget(shop, billing, 20)
    for each in (uuid7(15), uuid7(0), ulid(1), str(uuid.uuid4()), "00000000000000000000012345", "order-7"):
        assert (await shop.settle(billing, event(each))).status is Status.PROCESSED, each
    # What one consumer has forgotten is nothing to another.
    other = shop.consumer("other", retention=WINDOW)
    shop.handler(other)(effect)
    assert (await shop.settle(other, event(uuid7(400, 9)))).status is Status.PROCESSED


@on("sqlite", "psycopg")
@inline
async def test_what_is_still_known_is_a_duplicate(shop: Shop) -> None:
    billing = shop.consumer(retention=WINDOW)
    shop.handler(billing)(effect)
    old = uuid7(25)
    await shop.settle(billing, event(old))
    await forget(shop, billing, where="message_id = 'forgotten'")
    assert (await shop.deliver(billing, event(old))).status is Status.DUPLICATE


@on("sqlite")
async def test_a_policy_may_run_them_all_the_same(shop: Shop) -> None:
    billing = shop.consumer(retention=WINDOW, outside_window="run")
    shop.handler(billing)(effect)
    await forget(shop, billing)
    assert (await shop.settle(billing, event(uuid7(25)))).status is Status.PROCESSED


@on("sqlite")
async def test_an_events_time_counts_where_it_is_asked_for(shop: Shop) -> None:
    billing = shop.consumer(retention=WINDOW, outside_window="by_time")
    by_id = shop.consumer("other", retention=WINDOW)
    made = datetime.fromtimestamp(time.time() - 25 * DAY, UTC).isoformat()
    for consumer in (billing, by_id):
        shop.handler(consumer)(effect)
    await forget(shop, billing)
    await forget(shop, by_id)
    message = event("evt-7", headers=(("ce-time", made.replace("+", "%2B").encode()),))
    assert (await shop.deliver(billing, message)).reason == "outside window"
    assert (await shop.settle(by_id, message)).status is Status.PROCESSED


@on("sqlite", "psycopg")
@inline
async def test_a_batch_leaves_them_out(shop: Shop) -> None:
    billing = shop.consumer(retention=WINDOW, batch=10)
    shop.handler(billing)(effect)
    await forget(shop, billing)
    old = uuid7(25)
    messages = [event(f"n-{n}") for n in range(3)] + [event(old)] + [event(f"m-{n}") for n in range(3)]
    outcomes = await shop.settle_all(billing, messages)
    assert [outcomes[old][0].status, outcomes["n-0"][0].status] == [Status.DEAD, Status.PROCESSED]
    assert old not in shop.effects()
    assert sum(shop.effects().values()) == 7


@on("sqlite", "psycopg")
@stored
async def test_an_old_one_in_a_lane_is_not_put_in_line(shop: Shop) -> None:
    cases = shop.consumer(retention=WINDOW, **BY_KEY)
    shop.handler(cases)(note)
    await forget_lane(shop, cases)
    old = event(uuid7(25), key="a", payload={"case": "a", "version": 1})
    assert (await shop.deliver(cases, old)).reason == "outside window"
    assert shop.count("queue") == 0


@on("sqlite", "psycopg")
@inline
async def test_inline_an_old_one_is_not_put_behind_what_waits_in_its_lane(shop: Shop) -> None:
    cases = shop.consumer(retention=WINDOW, **BY_KEY)

    @shop.handler(cases)
    async def fails(call: Call) -> None:
        if call.message.id == "a-1":
            raise RuntimeError
        await note(call)

    await forget_lane(shop, cases)
    assert (await shop.deliver(cases, case("a", 1))).status is Status.STORED
    old = case("a", 2, id=uuid7(25))
    assert (await shop.deliver(cases, old)).reason == "outside window"
    assert shop.rows(f"SELECT message_id FROM {shop.table('queue')}") == [("a-1",)]


async def forget_lane(shop: Shop, cases: Any) -> None:
    await shop.deliver(cases, event("first", key="b", payload={"case": "b", "version": 1}))
    await shop.work_off(cases)
    age(shop, 20)
    marked(shop, cases, 19)
    assert await walk(shop, cases) == 1


async def test_purge_says_up_to_when_it_has_forgotten(shop: Shop) -> None:
    billing = shop.consumer(retention=WINDOW)
    shop.handler(billing)(effect)
    assert shop.rows(f"SELECT * FROM {shop.table('forgotten')}") == []
    await forget(shop, billing, 30)
    first = shop.rows(f"SELECT received FROM {shop.table('forgotten')}")
    await shop.settle(billing, event("young"))
    assert (await Sweeper(shop.app.database, [billing], "me").count()) == {}
    await walk(shop, billing)
    assert shop.rows(f"SELECT received FROM {shop.table('forgotten')}") == first, "it never goes back"


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("017f22e2-79b0-7cc3-98c4-dc0c0c07398f", 1645557742.0),
        ("017F22E279B07CC398C4DC0C0C07398F", 1645557742.0),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", 1469922850.259),
        ("01arz3ndektsv4rrffq69g5fav", 1469922850.259),
        ("017f22e2-79b0-4cc3-98c4-dc0c0c07398f", None),
        ("017f22e2-79b0-7cc3-18c4-dc0c0c07398f", None),
        ("00000000-0000-7000-8000-000000000001", None),
        ("00000000000000000000000001", None),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAU", None),
        ("81ARZ3NDEKTSV4RRFFQ69G5FAV", None),
        ("evt-42", None),
        ("", None),
    ],
)
def test_the_time_in_an_id(text: str, made: float | None) -> None:
    assert id_made_at(text) == (pytest.approx(made) if made is not None else None)


@pytest.mark.parametrize("value", [b"yesterday", b"\xff", b"", b"1950-01-01T00:00:00Z"])
def test_a_time_that_is_none_is_no_time(value: bytes) -> None:
    assert event_made_at(event(headers=(("CE-Time", value),))) is None
    assert event_made_at(event(headers=(("cloudEvents:time", b"2026-03-01T12:00:00Z"),))) == 1772366400.0
