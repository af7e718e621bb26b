"""Words of policy that do not go together, and identities that are none."""

from __future__ import annotations

import itertools
import sqlite3
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from oncebox import App, Backoff
from oncebox.brokers.memory import Memory
from oncebox.brokers.sqs import by_message_id
from oncebox.doctor.policies import check_policies
from oncebox.errors import UnknownEffect
from oncebox.identity import Identity, by_business, by_content, by_position, field, header
from tests.doctor.kit import Findings


def checked(app: App) -> Findings:
    return Findings(check_policies(app))


def with_handler(app: App, **words: Any) -> Any:
    consumer = app.consumer("billing", Memory().queue("payments"), **words)

    @consumer.handler("paid")
    def paid(payment: dict[str, int], conn: sqlite3.Connection) -> None: ...

    return consumer


@pytest.fixture
def app(sqlite_url: str) -> App:
    return App(sqlite_url)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"batch": 50, "timeout_seconds": 600.0}, "batch-long"),
        ({"observe": True}, "observe-on"),
        ({"replay": "rebuild"}, "replay-without-payload"),
    ],
)
def test_words_that_do_not_go_together(app: App, words: dict[str, Any], code: str) -> None:
    with_handler(app, **words)
    assert checked(app).codes == {code}


def test_words_that_do(app: App) -> None:
    with_handler(
        app,
        batch=50,
        replay="rebuild",
        keep_payload="always",
        retry=Backoff(attempts=3),
        timeout_seconds=20.0,
    )
    assert checked(app) == []


def test_effects_that_a_replay_would_repeat_and_a_lease_that_is_short(app: App) -> None:
    mailer = app.consumer("mailer", mode="stored", replay="rebuild", keep_payload="always", lease_seconds=2.0)

    @mailer.effect("receipt")
    def send(receipt: dict[str, str]) -> None:
        raise UnknownEffect

    assert checked(app).codes == {"replay-effects", "lease-short"}


def test_heartbeats_that_lapse_too_soon(sqlite_url: str) -> None:
    app = App(sqlite_url, heartbeat_seconds=2.0, lapse_seconds=4.0)
    assert checked(app).codes == {"lapse-short"}


def test_a_consumer_without_handlers(app: App) -> None:
    app.consumer("billing", Memory().queue("payments"))
    assert checked(app).of("no-handler").subject == "consumer billing"


_numbers = itertools.count()


@pytest.mark.parametrize(
    ("resolver", "code"),
    [
        (lambda envelope: str(uuid.uuid4()), "identity-unstable"),
        (lambda envelope: f"n-{next(_numbers)}", "identity-unstable"),
        (lambda envelope: str(envelope.properties["delivery_tag"]), "identity-unstable"),
        (lambda envelope: "payment", "identity-constant"),
        (by_position, "identity-position"),
        (by_message_id, "identity-position"),
        (by_content, "identity-content"),
    ],
)
def test_an_identity_that_is_none(app: App, resolver: Callable[..., Any], code: str) -> None:
    with_handler(app, identity=Identity(id=resolver))
    assert checked(app).codes == {code}


@pytest.mark.parametrize(
    "resolver",
    [
        field("id"),
        field("order.number"),
        header("message-id"),
        header("x-missing"),
        by_business("order", field("id"), "paid"),
        lambda envelope: envelope.json()["no such member"],
        None,
    ],
)
def test_an_identity_that_may_be_one(app: App, resolver: Any) -> None:
    with_handler(app, identity=Identity(id=resolver))
    assert checked(app) == []
