"""A broker that can't be reached when the app starts is waited for, like one that goes away later."""

import logging

import pytest

from oncebox.brokers.memory import Memory
from oncebox.errors import BrokerUnavailable, ConfigError
from tests.core.fixtures import inline, on
from tests.core.kit import Shop, effect, event
from tests.waiting import eventually_async


@on("sqlite-async", "psycopg")
async def test_an_app_starts_without_its_broker_and_goes_on_when_it_is_there(
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory()
    queue = memory.queue("payments")
    billing = shop.consumer("billing", queue)
    shop.handler(billing)(effect)
    memory.put("payments", event())
    opening, away = queue.open, [True, True, True]

    async def open_later() -> None:
        if away:
            away.pop()
            raise BrokerUnavailable("the broker can't be reached")
        await opening()

    monkeypatch.setattr(queue, "open", open_later)
    with caplog.at_level(logging.WARNING, "oncebox"):
        async with shop.app.running():
            await eventually_async(lambda: shop.effects() == {"evt-1": 1}, 30)
    lines = [record for record in caplog.records if "can't be reached" in record.getMessage()]
    assert 1 <= len(lines) <= 3
    assert all(record.exc_info is None for record in lines), "a line, not a traceback"


@inline
@on("sqlite-async")
async def test_a_topology_that_is_wrong_ends_the_start(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Memory().queue("payments")
    shop.handler(shop.consumer("billing", queue))(effect)

    async def refuse() -> None:
        raise ConfigError("queue 'payments' does not exist; create it")

    monkeypatch.setattr(queue, "open", refuse)
    with pytest.raises(ConfigError, match="create it"):
        async with shop.app.running():
            pass
