"""Observing, for adoption: duplicates and conflicts are counted and take effect all the same."""

import asyncio
from typing import Any

import pytest

from oncebox import App, Backoff, Dead, Status
from oncebox.brokers.memory import Memory
from oncebox.core.outcomes import Answer
from oncebox.errors import ConfigError
from oncebox.runtime.inspect import Reader, StatusReport, read_status
from tests.core.fixtures import inline
from tests.core.kit import Call, Shop, effect, event


async def status(shop: Shop) -> StatusReport:
    reader = Reader(shop.app.database)
    try:
        return await reader.ask(read_status(shop.app.database.queries))
    finally:
        await reader.close()


@inline
async def test_duplicates_and_conflicts_run_and_are_counted(shop: Shop) -> None:
    billing = shop.consumer(observe=True)

    @shop.handler(billing)
    async def counts(call: Call) -> dict[str, int]:
        await effect(call)
        return {"n": len(shop.notes())}

    messages = [event(), event(), event(payload={"other": 1}), event("evt-2")]
    outcomes = [await shop.deliver(billing, message) for message in messages]
    assert [outcome.status for outcome in outcomes] == [
        Status.PROCESSED, Status.OBSERVED_DUPLICATE, Status.OBSERVED_CONFLICT, Status.PROCESSED,
    ]  # fmt: skip
    assert {outcome.answer for outcome in outcomes} == {Answer.ACK}
    assert shop.effects() == {"evt-1": 3, "evt-2": 1}
    assert (shop.count("dead"), shop.count("ledger")) == (0, 2)
    assert [outcome.result for outcome in outcomes] == [{"n": 0}, {"n": 1}, {"n": 2}, {"n": 3}], (
        "each its own"
    )
    kept = shop.rows(f"SELECT body FROM {shop.table('result')} WHERE message_id = 'evt-1'")
    assert [bytes(row[0]) for row in kept] == [b'{"n":0}'], "the first delivery's is kept"
    await shop.app.aclose()
    [seen] = (await status(shop)).consumers
    assert seen.outcomes == {"processed": 2, "observed_duplicate": 1, "observed_conflict": 1}
    assert (seen.observed, seen.duplicates, seen.processed) == (2, 0, 2)


@inline
async def test_a_running_app_observes_and_acks(shop: Shop) -> None:
    memory = Memory()
    billing = shop.consumer("billing", memory.queue("payments"), observe=True)
    shop.handler(billing)(effect)
    memory.put("payments", *(event(f"evt-{n}") for n in range(10)), duplicates=1)
    async with shop.app.running():
        async with asyncio.timeout(30):
            await memory.drained()
    assert shop.effects() == {f"evt-{n}": 2 for n in range(10)}


@inline
async def test_without_the_word_the_same_ledger_suppresses(shop: Shop) -> None:
    watching = shop.consumer(observe=True)
    shop.handler(watching)(effect)
    for _ in range(2):
        await shop.deliver(watching, event())
    del shop.app.consumers["billing"]
    billing = shop.consumer()
    shop.handler(billing)(effect)
    assert (await shop.deliver(billing, event())).status is Status.DUPLICATE
    assert shop.effects() == {"evt-1": 2}


@inline
async def test_a_duplicate_that_fails_is_tried_again_and_then_let_go(shop: Shop) -> None:
    billing = shop.consumer(observe=True, retry=Backoff(attempts=2, base_seconds=0.0))
    broken = [False]

    @shop.handler(billing)
    async def fails_later(call: Call) -> None:
        if broken[0]:
            raise ValueError("not again")
        await effect(call)

    await shop.deliver(billing, event())
    broken[0] = True
    outcomes = [await shop.deliver(billing, event()) for _ in range(2)]
    assert [outcome.status for outcome in outcomes] == [Status.RETRY, Status.OBSERVED_DUPLICATE]
    assert isinstance(outcomes[1].error, ValueError)
    assert (shop.effects(), shop.count("dead")) == ({"evt-1": 1}, 0)


@inline
async def test_what_is_dead_stays_dead(shop: Shop) -> None:
    billing, calls = shop.consumer(observe=True), []

    @shop.handler(billing)
    async def refuses(call: Call) -> None:
        calls.append(call.message.id)
        raise Dead("no")

    assert [(await shop.deliver(billing, event())).status for _ in range(2)] == [Status.DEAD, Status.DEAD]
    assert calls == ["evt-1"]


@pytest.mark.parametrize(
    "words",
    [
        {"mode": "stored"},
        {"batch": 10},
        {"durability": "group"},
        {"order_by": "key", "key": "case"},
    ],
    ids=lambda words: next(iter(words)),
)
def test_words_that_can_not_observe_are_refused(sqlite_url: str, words: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"consumer 'billing': observe=True with \w+="):
        App(sqlite_url).consumer("billing", observe=True, **words)


def test_it_is_yes_or_no(sqlite_url: str) -> None:
    with pytest.raises(ConfigError, match="observe='yes': it is True or False"):
        App(sqlite_url).consumer("billing", observe="yes")
