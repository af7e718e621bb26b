"""A secret in a payload reaches the handler and the payload's own column, and nothing else: neither error
text, nor tracebacks, nor logs."""

import logging
from typing import Any

import msgspec
import pydantic
import pytest

from oncebox import Backoff, Outcome, Status
from oncebox.errors import Retry
from oncebox.runtime.feed import report
from tests.core.fixtures import postgresql
from tests.core.kit import Call, Shop, event

CANARY = "canary-4111-1111-1111-1111"


class Card(msgspec.Struct):
    number: int


class Model(pydantic.BaseModel):
    number: int
    expires: int


def spoken(shop: Shop, caplog: pytest.LogCaptureFixture, outcome: Outcome) -> str:
    """Everything that people or tools other than the handler get to see."""
    report("billing", next(iter(_items(shop, outcome))), outcome)
    tables = [
        shop.rows(f"SELECT error_type, error, traceback FROM {shop.table('attempt')}"),
        shop.rows(f"SELECT reason, error_type, error, traceback FROM {shop.table('dead')}"),
        shop.rows(f"SELECT * FROM {shop.table('tally')}"),
        shop.rows(f"SELECT * FROM {shop.table('hand')}"),
    ]
    return f"{tables}{caplog.text}{outcome.error if not _own(outcome) else ''}"


def _own(outcome: Outcome) -> bool:
    """Errors that the handler itself raised are the handler's; the outcome hands them over as they are."""
    return not type(outcome.error).__module__.startswith("oncebox")


def _items(shop: Shop, outcome: Outcome) -> Any:
    consumer = next(iter(shop.app.consumers.values()))
    yield consumer.intake.from_message(event())


@pytest.mark.parametrize("payload", [Card, Model, dict[str, int]], ids=["struct", "model", "dict"])
async def test_a_payload_that_does_not_decode_is_not_quoted(
    shop: Shop, payload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    billing = shop.consumer()

    @shop.handler(billing, payload=payload)
    async def never(call: Call) -> None:
        raise AssertionError

    outcome = await shop.settle(billing, event(payload={"number": CANARY, CANARY: CANARY}))
    assert outcome.reason == "undecodable"
    assert CANARY not in spoken(shop, caplog, outcome)


async def test_locals_and_the_messages_of_what_led_to_an_error_are_not_kept(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    billing = shop.consumer(retry=Backoff(base_seconds=0))

    @shop.handler(billing)
    async def fails(call: Call) -> None:
        number = call.payload["number"]
        try:
            int(number)
        except ValueError as error:
            raise Retry("the card was refused", after=0) from error

    outcome = await shop.settle(billing, event(payload={"number": CANARY}))
    assert outcome.status is Status.RETRY
    text = spoken(shop, caplog, outcome)
    assert "ValueError" in text, "where it came from is kept"
    assert CANARY not in text


DRIVER_ERRORS = {
    "unique": "INSERT INTO card VALUES (?)",
    "cast": "SELECT CAST(CAST(? AS text) AS integer)",
    "check": "INSERT INTO card VALUES (? || 'forbidden')",
}


@postgresql
@pytest.mark.parametrize("how", list(DRIVER_ERRORS))
async def test_what_the_database_quotes_in_its_errors_is_not_kept(
    shop: Shop, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    billing = shop.consumer(retry=Backoff(attempts=1))
    shop.rows(
        "CREATE TABLE IF NOT EXISTS card (number text PRIMARY KEY CHECK (number NOT LIKE '%%forbidden'))"
    )
    shop.rows("INSERT INTO card VALUES (?)", CANARY)

    @shop.handler(billing)
    async def inserts(call: Call) -> None:
        await call.db.run(DRIVER_ERRORS[how], call.payload["number"])

    outcome = await shop.settle(billing, event(payload={"number": CANARY}))
    assert outcome.status is Status.DEAD
    text = spoken(shop, caplog, outcome)
    assert "SQLSTATE 2" in text, "its code is kept"
    assert CANARY not in text


async def test_a_conflict_does_not_quote_either_payload(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    billing = shop.consumer()

    @shop.handler(billing)
    async def fine(call: Call) -> None:
        await call.db.effect(call.message.id)

    await shop.settle(billing, event(payload={"number": CANARY}))
    outcome = await shop.deliver(billing, event(payload={"number": CANARY + "2"}))
    assert outcome.reason == "conflict"
    assert CANARY not in spoken(shop, caplog, outcome)
